#!/bin/bash
# parity.sh [OUT]: the tiny models by transformers and by ours on the same card: logits, losses, sets and
# every element of the gradients, in float32 and, with transformers' sets, in bfloat16; the tables of
# tests/parity/RESULTS.md, into OUT/parity.md. TOOLS names the programs, PYTHON one with torch and
# transformers. DEVICE=cpu tries it without a GPU.
set -u
cd "$(dirname "$0")/../.." || exit 1
: "${TOOLS:=build/release/tools}" "${PYTHON:=python3}" "${DEVICE:=cuda}"
out=${1:-build/gpu-results}
golden=$(mktemp -d "${TMPDIR:-/tmp}/glm-parity-XXXXXX") || exit 1
trap 'rm -rf "$golden"' EXIT
mkdir -p "$out" || exit 1
models=(tiny-a tiny-b tiny-b-plain tiny-c)
if ! "$PYTHON" -c 'import torch, transformers' 2> /dev/null; then
    echo "skipped: $PYTHON has no torch or no transformers"
    exit 0
fi
export OMP_NUM_THREADS=4
for model in "${models[@]}"; do
    "$PYTHON" fixtures/make_parity_golden.py --whole "$golden" --device "$DEVICE" "$model" &
done
for model in "${models[@]}"; do
    wait -n || bad=1
done
[ -z "${bad:-}" ] || exit 1
"$TOOLS/parity" --device "$DEVICE" "$golden"/*.safetensors > "$out/parity.md"
status=$?
cat "$out/parity.md"
"$PYTHON" -c 'import torch, transformers
where = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
print("torch", torch.__version__, "transformers", transformers.__version__, "on", where)'
[ $status -eq 0 ] && echo "4 models within the bounds of float32, and of bfloat16 with the same sets"
exit $status
