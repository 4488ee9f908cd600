#!/bin/bash
# resume_slice.sh: rungs R0 and R1 for the slice of GLM-5.2 at full width (fixtures/configs/slice.json,
# 4.75 billion parameters, BF16, Muon and AdamW, MTP none, the indexer's loss on) on the GPU.
#
# One process trains N + M steps from random weights. Another does N, saves (some 46 GB) and ends; a third
# one loads that and does M. As loaded and after each of the M steps every weight, master, moment,
# momentum and counter is compared by digest, and losses and norms by bits: glm-verify resume. That what
# was loaded is what the first process had after N steps is R0, the rest R1.
#
# BIN names the programs. STEPS=N,M (2,2), SEQ tokens of a sequence (4096), DEVICE, CONFIG: smaller ones
# try it without a GPU. The checkpoint goes to /dev/shm if that has ROOM gigabytes (52) free, else to TMPDIR.
set -u
cd "$(dirname "$0")/../.." || exit 1
: "${BIN:=build/release/bin}" "${STEPS:=2,2}" "${SEQ:=4096}" "${DEVICE:=cuda}"
: "${CONFIG:=fixtures/configs/slice.json}" "${ROOM:=52}"
root=$PWD BIN=$(cd "$BIN" && pwd)
place=${TMPDIR:-/tmp}
free=$(df --output=avail -k /dev/shm 2> /dev/null | tail -1)
[ "${free:-0}" -gt $((ROOM * 1000000)) ] && place=/dev/shm
work=$(mktemp -d "$place/glm-slice-XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
df -h "$work" | tail -1

"$BIN/glm-data" build --quiet manual.h5 "$root"/fixtures/demo/manual/* > /dev/null || exit 1
cat > recipe.yaml << END
ARGS:
  bf16: true
  optimizer: muon
  muon_extra_scale_factor: 0.2
  adam_beta2: 0.95
  weight_decay: 0.1
  lr: 1e-4
  min_lr: 1e-5
  lr_decay_style: cosine
  lr_warmup_iters: 1
  dsa_indexer_loss_coeff: 0.01
  dsa_indexer_use_sparse_loss: true
  micro_batch_size: 1
  global_batch_size: 2
  seq_length: $SEQ
  train_iters: 4
  seed: 5
  split: "100,0,0"
  save_interval: 1000
  async_save: false
GLM:
  model: $root/$CONFIG
  data: manual.h5
  run_dir: slice.run
  device: $DEVICE
END

# Notes say when a process begins, when it has its weights (at step ...) and when a step is done; digests
# are made behind each of these.
began=$EPOCHREALTIME
stamp() {
    local line
    while IFS= read -r line; do
        awk -v a="$began" -v b="$EPOCHREALTIME" -v s="$line" 'BEGIN { printf "%7.1f s  %s\n", b - a, s }'
    done
}
"$BIN/glm-verify" resume --steps "$STEPS" --dir proof recipe.yaml 2>&1 | stamp
status=${PIPESTATUS[0]}
du -sh --apparent-size proof/two/step-* 2> /dev/null
awk -v a="$began" -v b="$EPOCHREALTIME" -v s="$status" -v c="$CONFIG" 'BEGIN {
    printf "%s resume_slice %s: %.0f s\n", s == 0 ? "ok" : "FAIL", c, b - a }'
exit "$status"
