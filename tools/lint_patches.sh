#!/bin/sh
# lint_patches.sh: a planted defect that no longer applies tests nothing.
cd "$(dirname "$0")/.." || exit 1
bad=0
for p in tests/mutants/*.patch; do
    git apply --check "$p" || { echo "lint: $p does not apply" >&2; bad=1; }
done
exit $bad
