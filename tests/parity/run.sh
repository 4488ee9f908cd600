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
[ "${PIPESTATUS[0]}" = 0 ] || exit 1

(cd fixtures && "../$PYTHON" make_parity_golden.py --whole "$work/golden") || exit 1
{
    cat << 'END'
# The model against Hugging Face transformers

Made by `make parity`: float32, every element of every gradient (the fixtures hold a part of them).
"transformers" is transformers 5.17.0 in float32, loss: mean cross-entropy. "float64" is
`fixtures/reference_model.py`, with MTP and the indexer's loss on. Differences are the largest,
over the largest magnitude of the reference; bounds: logits and losses 1e-5, gradients 1e-4, cosine
within 1e-6 of 1, no set different.

The second table is bfloat16 beside transformers in bfloat16. Near a tie rounding chooses, and the rows
behind another choice are other rows: with sets of their own, transformers is that far from itself when
it computes attention by another of its functions. So the arithmetic is compared with transformers'
sets replayed; bounds: cosine of the logits 0.999, of every gradient 0.995.

END
    "$TOOLS/parity" "$work"/golden/*.safetensors || exit 1
} > "$work/RESULTS.md" || exit 1
cp "$work/RESULTS.md" tests/parity/RESULTS.md
cat tests/parity/RESULTS.md
