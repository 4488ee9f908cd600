#!/bin/bash
# test_gradients.sh: finite differences of tiny-a at 20 entries of every tensor; `make test` takes two.
cd "$(dirname "$0")/../.." || exit 1
GRADIENT_ENTRIES=20 build/release/tests/train/test_gradients --color=never \
    --filter='gradients/of_tiny_a*'
