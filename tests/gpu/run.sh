#!/bin/bash
# run.sh test|sanitize [OP...]: the GPU tests with programs built beforehand, on a machine that may have
# nothing but a GPU, its driver and CUDA's libraries.
#
#   test      gpu_ops of each operation: 20 runs with the same bits beside a noise kernel; then the tiny
#             models on CPU and GPU side by side (gpu_train), and a run with restarts (resume.sh)
#   sanitize  compute-sanitizer's memcheck and racecheck over gpu_ops --small
#
# Programs are those of build/gpu (make gpu-pack) or else of build/release. Results: a line a run, then
# counts, on the screen; in build/gpu-results a log of each run, results.txt and results.json.
# JOBS runs at a time (4: more only wait for the one GPU), LIMIT seconds each (300). Status 0 if nothing failed.
cd "$(dirname "$0")/../.." || exit 1
mode=${1:-test}
[ $# -gt 0 ] && shift
: "${JOBS:=4}" "${LIMIT:=300}"
root=build/release
[ -x build/gpu/tools/gpu_ops ] && root=build/gpu
tools=$root/tools
out=build/gpu-results/$mode
if [ ! -x $tools/gpu_ops ] || [ ! -e $root/lib/libglm-cuda.so ]; then
    echo "tests/gpu/run.sh: $tools/gpu_ops or $root/lib/libglm-cuda.so is not there: make, on a machine with nvcc" >&2
    exit 1
fi
rm -rf "$out"
mkdir -p "$out" || exit 1

# cuBLASLt is CUDA's own and is not packed.
cuda=$(for d in "${CUDA_HOME:-/usr/local/cuda}/lib64" /usr/local/cuda/lib64 \
    "$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")"/lib*; do
    [ -e "$d/libcublasLt.so.13" ] && echo "$d" && break
done)
export LD_LIBRARY_PATH=$PWD/$root/deps${cuda:+:$cuda}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# Runs share the processors.
threads=$((2 * $(nproc) / JOBS))
[ $threads -gt 1 ] || threads=2

# One run: name, words. Leaves NAME.log, NAME.status, NAME.seconds.
one() {
    local name=$1 begin=$EPOCHREALTIME
    shift
    timeout -k 10 "$LIMIT" "$@" > "$out/$name.log" 2>&1
    echo $? > "$out/$name.status"
    awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f\n", b - a }' > "$out/$name.seconds"
}

names=()
start() { # waits for a place
    while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do
        wait -n
    done
    names+=("$1")
    one "$@" &
}

# The longest first.
long="attention_bwd attention_fwd gemm grouped_gemm indexer_loss indexer_topk linear_ce_bwd"
if [ $# -gt 0 ]; then
    ops=("$@")
else
    mapfile -t ops < <(printf '%s\n' $long; $tools/gpu_ops --list | cut -d' ' -f1 | sort -u |
        grep -vxF "$(printf '%s\n' $long)")
fi
case $mode in
test)
    for op in "${ops[@]}"; do
        start "$op" $tools/gpu_ops --op "$op" --repeats 20 --noise --threads "$threads" --json "$out/$op.json"
    done
    if [ -x $tools/gpu_train ] && [ ${#ops[@]} -gt 1 ]; then
        for model in tiny-a tiny-b tiny-c; do
            start "train-f32-$model" $tools/gpu_train fixtures/$model-f32/config.json f32 50
            start "train-bf16-$model" $tools/gpu_train fixtures/$model-f32/config.json bf16 50
        done
        BIN=$root/bin TOOLS=$tools start resume tests/gpu/resume.sh
    fi
    ;;
sanitize)
    for op in "${ops[@]}"; do
        for tool in memcheck racecheck; do
            start "$tool-$op" compute-sanitizer --tool $tool --error-exitcode 99 --print-limit 5 \
                $tools/gpu_ops --op "$op" --small --repeats 1
        done
    done
    ;;
*)
    sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
wait

failed=0
for name in "${names[@]}"; do
    status=$(cat "$out/$name.status")
    last=$(grep -aE '^[0-9]+ passed' "$out/$name.log" | tail -1)
    [ -n "$last" ] || last=$(tail -1 "$out/$name.log")
    word=ok
    [ "$status" -eq 0 ] || word=FAIL failed=$((failed + 1))
    [ "$status" -eq 124 ] && last="longer than $LIMIT s"
    printf '%-5s %-34s %7s s  %s\n' $word "$name" "$(cat "$out/$name.seconds")" "$last"
    [ "$status" -eq 0 ] || grep -aE '^FAIL|^=+ (Error|ERROR|Invalid|Race)' "$out/$name.log" | head -8 | sed 's/^/      /'
done | tee "$out/results.txt"
failed=$(grep -c '^FAIL' "$out/results.txt")
{
    printf '{"mode": "%s", "gpu": "%s", "failed": %d, "runs": [' "$mode" \
        "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null | head -1)" "$failed"
    comma=
    for name in "${names[@]}"; do
        printf '%s\n{"name": "%s", "status": %d, "seconds": %s, "cases": ' "$comma" "$name" \
            "$(cat "$out/$name.status")" "$(cat "$out/$name.seconds")"
        if [ -s "$out/$name.json" ] && [ "$(tail -c 2 "$out/$name.json")" = '}' ]; then
            cat "$out/$name.json"
        else
            echo null
        fi
        printf '}'
        comma=,
    done
    printf '\n]}\n'
} > "$out/results.json"
echo "${#names[@]} runs, $failed failed (${out}/results.txt, results.json)"
[ "$failed" -eq 0 ]
