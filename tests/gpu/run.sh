#!/bin/bash
# run.sh test|sanitize [OP...]: the GPU tests with programs built beforehand, on a machine that may have
# nothing but a GPU, its driver and CUDA's libraries. Of test also by name: parity, resume, train.
#
#   test      gpu_ops of each operation: 20 runs with the same bits beside a noise kernel, and 4 on each
#             other path; then the tiny models on CPU and GPU side by side (gpu_train), with the same
#             sets and with free choice; their steps launched and replayed (gpu_graph); a run with
#             restarts (resume.sh); transformers on the same card (parity.sh)
#   sanitize  compute-sanitizer's memcheck and racecheck over gpu_ops --small, all paths
#
# Programs are those of build/gpu (make gpu-pack) or else of build/release. Results: a line a run as it
# ends, then one with the counts; in build/gpu-results/MODE a log of each run, results.txt (what the
# screen has) and results.json, also when it is interrupted. Status 0 if nothing failed.
#
# JOBS runs at a time (one a processor), LIMIT seconds each (240). Runs side by side have the GPU in
# turns (--lock): what they share is the processors, for the reference. BACKEND=emulated or cpu
# tries this script without a GPU, and the list of sanitize without a sanitizer.
cd "$(dirname "$0")/../.." || exit 1
mode=${1:-test}
[ $# -gt 0 ] && shift
: "${JOBS:=$(nproc)}" "${LIMIT:=240}" "${BACKEND:=cuda}"
root=build/release
[ "$BACKEND" = cuda ] && [ -x build/gpu/tools/gpu_ops ] && root=build/gpu
tools=$root/tools
out=build/gpu-results/$mode

usage() {
    sed -n '2,18s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
die() {
    echo "tests/gpu/run.sh: $*" >&2
    exit 1
}
[ "$mode" = test ] || [ "$mode" = sanitize ] || usage
[ -x $tools/gpu_ops ] || die "$tools/gpu_ops is not there: make, on a machine with nvcc"
[ "$BACKEND" != cuda ] || [ -e $root/lib/libglm-cuda.so ] ||
    die "$root/lib/libglm-cuda.so is not there: make, on a machine with nvcc"

# cuBLASLt is CUDA's own and is not packed.
cuda=$(for d in "${CUDA_HOME:-/usr/local/cuda}/lib64" /usr/local/cuda/lib64 \
    "$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")"/lib*; do
    [ -e "$d/libcublasLt.so.13" ] && echo "$d" && break
done)
export LD_LIBRARY_PATH=$PWD/$root/deps${cuda:+:$cuda}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

rm -rf "$out"
mkdir -p "$out" || exit 1
began=$EPOCHREALTIME
names=()

since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f\n", b - a }'; }

# What a run's log says in a line.
gist() {
    local last races
    last=$(grep -aE '^[0-9]+ passed' "$1" | tail -1)
    races=$(grep -aoE '(ERROR|RACECHECK) SUMMARY: .*' "$1" | tail -1)
    [ -n "$last" ] || last=$(grep -av '^$' "$1" | tail -1 | cut -c1-200)
    echo "$last${races:+; $races}"
}

# One run: name, words. Leaves NAME.log, NAME.status, NAME.seconds, and says how it went.
one() {
    local name=$1 begin=$EPOCHREALTIME status word=ok text
    shift
    timeout -k 10 "$LIMIT" "$@" > "$out/$name.log" 2>&1
    status=$?
    since "$begin" > "$out/$name.seconds"
    text=$(gist "$out/$name.log")
    [ $status -eq 0 ] || word=FAIL
    [ $status -eq 124 ] && text="longer than $LIMIT s; $text"
    {
        printf '%-5s %-26s %6s s  %s\n' $word "$name" "$(cat "$out/$name.seconds")" "$text"
        [ $status -eq 0 ] ||
            grep -aE '^FAIL|^gpu_|^glm-|^=+ +(Error|ERROR:|Invalid|Race|Warning|Program hit|and is|    at )' \
                "$out/$name.log" | head -8 | sed 's/^/      /' | cut -c1-240
    } > "$out/$name.line"
    cat "$out/$name.line"
    echo $status > "$out/$name.status"
}

start() { # waits for a place
    while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do
        wait -n
    done
    names+=("$1")
    one "$@" &
}

json() {
    local comma='' name
    printf '{"mode": "%s", "gpu": "%s", "seconds": %s, "failed": %d, "runs": [' "$mode" \
        "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null | head -1)" \
        "$seconds" "$failed"
    for name in "${names[@]}"; do
        printf '%s\n{"name": "%s", "status": %d, "seconds": %s, "cases": ' "$comma" "$name" \
            "$(cat "$out/$name.status" 2> /dev/null || echo 143)" \
            "$(cat "$out/$name.seconds" 2> /dev/null || echo null)"
        if [ -s "$out/$name.json" ] && [ "$(tail -c 2 "$out/$name.json")" = '}' ]; then
            cat "$out/$name.json"
        else
            echo null
        fi
        printf '}'
        comma=,
    done
    printf '\n]}\n'
}

# In a trap exit without a number would give the status from before it.
finish() {
    local ended=0 name passed status=1
    trap - EXIT TERM INT
    for name in "${names[@]}"; do
        [ -e "$out/$name.status" ] && ended=$((ended + 1)) && cat "$out/$name.line"
    done > "$out/results.txt"
    failed=$(grep -c '^FAIL' "$out/results.txt")
    seconds=$(since "$began")
    passed=$(grep -aoE ' [0-9]+ passed' "$out/results.txt" | awk '{ n += $1 } END { print n + 0 }')
    json > "$out/results.json"
    echo "gpu-$mode: ${#names[@]} runs, $failed failed, $((${#names[@]} - ended)) interrupted;" \
        "$passed cases passed; $seconds s ($out/results.txt, results.json)" | tee -a "$out/results.txt"
    # shellcheck disable=SC2046 # one process an argument
    [ $ended -eq ${#names[@]} ] || kill $(jobs -p) 2> /dev/null
    [ "$failed" -eq 0 ] && [ $ended -eq ${#names[@]} ] && [ $ended -gt 0 ] && status=0
    exit $status
}
trap finish EXIT TERM INT

# The longest first: those of many cases, then what is no operation.
long="gemm grouped_gemm parity resume train indexer_topk attention_bwd linear_ce_bwd router_fwd attention_fwd
    indexer_loss moe_combine_fwd moe_gather_bwd rmsnorm_bwd muon newton_schulz"
if [ $# -gt 0 ]; then
    ops=("$@")
else
    # shellcheck disable=SC2086 # words
    mapfile -t ops < <(printf '%s\n' $long
        $tools/gpu_ops --list | cut -d' ' -f1 | sort -u | grep -vxF "$(printf '%s\n' $long)")
fi

# Other paths of an operation: what a GPU of another kind, or an environment variable, chooses. All that
# is there is started: tests/long/test_kernels_reached.sh.
other() {
    case $1 in
    attention_fwd) echo GLM_CUDA_ATTENTION=wgmma GLM_CUDA_ATTENTION=mma GLM_CUDA_ATTENTION=plain ;;
    attention_bwd) echo GLM_CUDA_ATTENTION=lean GLM_CUDA_ATTENTION=mma GLM_CUDA_ATTENTION=plain ;;
    indexer_loss) echo GLM_CUDA_ATTENTION=mma ;;
    grouped_gemm) echo GLM_CUDA_GROUPED=wgmma GLM_CUDA_GROUPED=mma GLM_CUDA_GROUPED=plain ;;
    esac
}

# The tiny models on both sides, and with a step in one graph.
trains() {
    local model type train
    for model in tiny-a tiny-b tiny-c; do
        for type in f32 bf16; do
            train=("$tools/gpu_train" "fixtures/$model-f32/config.json" "$type" 50 --lock "$out/gpu.lock")
            start "train-$type-$model" "${train[@]}"
            start "free-$type-$model" "${train[@]}" --free
            start "graph-$type-$model" $tools/gpu_graph "fixtures/$model-f32/config.json" "$type" 50
        done
    done
}

case $mode in
test)
    # Beside each other processes of the CPU's backend share what there is, a thread more than they need.
    threads=$((2 * $(nproc) / JOBS))
    [ $threads -gt 1 ] || threads=2
    words=(--backend "$BACKEND" --threads "$threads" --lock "$out/gpu.lock")
    noise=(--noise)
    [ "$BACKEND" = cuda ] || noise=()
    for op in "${ops[@]}"; do
        case $op in
        parity) TOOLS=$tools start parity tests/gpu/parity.sh "$out" ;;
        resume) BIN=$root/bin TOOLS=$tools start resume tests/gpu/resume.sh ;;
        train) trains ;;
        *)
            start "$op" $tools/gpu_ops --op "$op" "${words[@]}" --repeats 20 "${noise[@]}" --json "$out/$op.json"
            for path in $(other "$op"); do
                start "$op.${path#*=}" env "$path" $tools/gpu_ops --op "$op" "${words[@]}" --repeats 4
            done
            ;;
        esac
    done
    ;;
sanitize)
    PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:/usr/local/cuda/bin
    tools_of=(racecheck memcheck) bands="50 of 512"
    [ "$BACKEND" = cuda ] || tools_of=(none) bands="1 of 700 x 600"
    if [ "$BACKEND" = cuda ]; then
        command -v compute-sanitizer > /dev/null ||
            die "compute-sanitizer is not there: it comes with CUDA's toolkit, in its folder bin"
        # Our kernels alone, all of them named k_...: cuBLASLt's are not ours to check.
        filter=--kernel-name
        compute-sanitizer --help | grep -q -e "$filter" || filter=--kernel-regex
    fi
    for op in "${ops[@]}"; do
        case $op in
        parity | resume | train) continue ;;
        esac
        for tool in "${tools_of[@]}"; do
            words=("$tools/gpu_ops" --backend "$BACKEND" --op "$op" --small --repeats 1 --threads 1)
            [ "$tool" = none ] ||
                words=(compute-sanitizer --tool "$tool" "$filter" kns=k_ --error-exitcode 99 --print-limit 5
                    "${words[@]}")
            # racecheck ends with an internal error where cuBLASLt's kernels run beside.
            [ "$tool" != racecheck ] || words+=(--plain-products)
            start "$tool-$op" "${words[@]}"
            for path in $(other "$op"); do
                start "$tool-$op.${path#*=}" env "$path" "${words[@]}"
            done
            # Symmetric products in bands come with as many matrices as a GPU is wide.
            [ "$op" != newton_schulz ] ||
                start "$tool-$op.bands" "${words[@]/--small/--case=$bands}"
        done
    done
    ;;
esac
while [ "$(jobs -rp | wc -l)" -gt 0 ]; do
    wait -n
done
