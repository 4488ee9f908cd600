#!/bin/bash
# The GPU backend's operations on the CPU (tests/emu): small shapes, once, as its threads always run in
# the same order. A line per case; the emulator's own checks come first, then a model's steps, launched
# and replayed.
: "${TOOLS:=build/release/tools}"
"$TOOLS/../../emulated/emu_check" || echo "FAIL emulator: its own checks"
"$TOOLS/gpu_graph" fixtures/configs/mini.json bf16 5 --small --backend emulated
# Kernels that the environment asks for are in the device's name; a word that means none is refused.
emulated() { GLM_CUDA_ATTENTION=$1 "$TOOLS/gpu_ops" --backend emulated --op add --small --repeats 1 2>&1 | tail -1; }
asked="$(emulated mma) | $(emulated "") | $(emulated fast)"
case $asked in
*"(emulated GPU, GLM_CUDA_ATTENTION=mma, "*" | "*"(emulated GPU, 1 runs"*" | "*'GLM_CUDA_ATTENTION: "fast", expected one of: plain mma lean wgmma cudnn')
    echo "ok   emulator: kernels that the environment asks for" ;;
*) echo "FAIL emulator: kernels that the environment asks for: $asked" ;;
esac
exec "$TOOLS/gpu_ops" --backend emulated --small --repeats 1
