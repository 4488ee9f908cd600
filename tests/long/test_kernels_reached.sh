#!/bin/bash
# The list of gpu-sanitize starts every kernel there is: run on the emulator, which writes down what it
# starts, and compared with what the sources can start. Some minutes.
cd "$(dirname "$0")/../.." || exit 1
: "${JOBS:=2}"
trace=$(mktemp) || exit 1
trap 'rm -f "$trace"' EXIT
make -s emulated build/release/tools/gpu_ops || exit 1
EMU_TRACE=$trace BACKEND=emulated JOBS=$JOBS LIMIT=900 tests/gpu/run.sh sanitize || echo "FAIL kernels: the list"

# Both as "file: kernel", without what a template is given.
started=$(sed -E 's|^.*/([^/]*): \(*([A-Za-z_0-9]+).*|\1: \2|' "$trace" | sort -u)
there=$(
    for f in kernels/cuda/*.cu kernels/cuda/*.cuh; do
        [ "$f" = kernels/cuda/launch.cuh ] ||
            tr '\n' ' ' < "$f" | grep -oE 'LAUNCH\([[:space:](]*k_[A-Za-z_0-9]+' |
            sed -E "s|.*(k_[A-Za-z_0-9]+)|${f##*/}: \1|"
    done | sort -u)
missing=$(comm -13 <(echo "$started") <(echo "$there"))
if [ -n "$missing" ]; then
    echo "FAIL kernels: never started: ${missing//$'\n'/, }"
    exit 1
fi
echo "ok   kernels: $(echo "$there" | wc -l), every one started"
