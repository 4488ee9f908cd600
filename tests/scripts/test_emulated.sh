#!/bin/bash
# The GPU backend's operations on the CPU (tests/emu): small shapes, once, as its threads always run in
# the same order. A line per case; the emulator's own checks come first, then a model's steps, launched
# and replayed.
: "${TOOLS:=build/release/tools}"
"$TOOLS/../../emulated/emu_check" || echo "FAIL emulator: its own checks"
"$TOOLS/gpu_graph" fixtures/configs/mini.json bf16 5 --small --backend emulated
exec "$TOOLS/gpu_ops" --backend emulated --small --repeats 1
