#!/bin/bash
# run.sh: checkpoints that transformers wrote go through import and export; transformers then loads
# both and must give identical logits (fixtures/parity.py). BF16 and F32, fused experts or not,
# with and without MTP, groups, every indexer schedule; two topologies. See `make parity`.
cd "$(dirname "$0")/../.." || exit 1
: "${BIN:=build/release/bin}" "${TOOLS:=build/release/tools}" "${PYTHON:=.venv/bin/python}"
work=$(mktemp -d "${TMPDIR:-/tmp}/glm-parity-XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
pairs=()
for fixture in fixtures/tiny-*/; do
    name=$(basename "$fixture")
    options=(--tp 2 --pp 2 --ep 4)
    case $name in
        *nomtp) options=(--no-mtp) ;;
        tiny-c*) options=(--tp 4 --ep 2 --compress zstd) ;;
    esac
    "$TOOLS/tiny" "$fixture" "$work/$name" || exit 1
    "$BIN/glm-import" --quiet "${options[@]}" "$work/$name" "$work/$name.ckpt" > /dev/null || exit 1
    "$BIN/glm-export" --quiet "$work/$name.ckpt" "$work/$name.export" > /dev/null || exit 1
    pairs+=("$work/$name" "$work/$name.export")
done
"$PYTHON" fixtures/parity.py "${pairs[@]}" | sed "s|$work/||g"
exit "${PIPESTATUS[0]}"
