#!/bin/bash
# demo.sh [FOLDER]: the main job on a tiny model, step by step, each with its time (make demo).
#
# The model is the one that Hugging Face transformers wrote for fixtures/tiny-a-bf16, with tensors
# of a multi-token-prediction layer added: 296 tensors, BF16, random normal weights. It is imported
# for TP 2, PP 2, EP 4, taken to MXFP8 and back beside the main line, resharded to TP 1, PP 4, EP 2,
# exported, and compared with what came in. Then it is trained on the suite's manual pages, stopped,
# taken up again, resharded, exported and verified; curve.svg is a picture of it. FOLDER keeps
# everything; without it nothing stays.
set -u
cd "$(dirname "$0")/.." || exit 1
root=$PWD
: "${BIN:=build/release/bin}" "${TOOLS:=build/release/tools}"
BIN=$(cd "$BIN" && pwd) && TOOLS=$(cd "$TOOLS" && pwd) || exit 1
if [ $# -gt 0 ]; then
    mkdir -p "$1" && cd "$1" || exit 1
else
    work=$(mktemp -d "${TMPDIR:-/tmp}/glm-demo-XXXXXX") || exit 1
    trap 'rm -rf "$work"' EXIT
    cd "$work" || exit 1
fi
PATH=$BIN:$TOOLS:$PATH
export LC_ALL=C.UTF-8 # the order of files
number=0
begin=$EPOCHREALTIME

since() { # a time: prints seconds
    awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f s", b - a }'
}

step() { # what, command
    local what=$1 from
    shift
    number=$((number + 1))
    printf '\n%d. %s\n   $ %s\n' $number "$what" "$*"
    from=$EPOCHREALTIME
    "$@" 2>&1 | sed 's/^/   /'
    if [ "${PIPESTATUS[0]}" -ne 0 ]; then
        echo "demo: step $number failed: $*" >&2
        exit 1
    fi
    printf '   [%s]\n' "$(since "$from")"
}

echo "A tiny GLM-5.2 from Hugging Face transformers goes round, learns, and nothing is lost."
step "The model directory, as transformers wrote it" tiny "$root/fixtures/tiny-a-bf16" tiny
step "Import it for 2 tensor-parallel, 2 pipeline and 4 expert ranks" \
    glm-import --quiet --tp 2 --pp 2 --ep 4 tiny tiny.ckpt
step "Look inside" glm-inspect tiny.ckpt
step "Is every byte as it was written?" glm-verify integrity --quiet tiny.ckpt

step "Beside the main line: convert to MXFP8, with the error of each tensor" \
    glm-convert --quiet --dtype mxfp8 --report mxfp8.tsv tiny.ckpt tiny-mxfp8.ckpt
step "The first tensors of that report" head -5 mxfp8.tsv
step "Export it, to check each element against half an E4M3 step of its block's scale" \
    glm-export --quiet tiny-mxfp8.ckpt tiny-mxfp8
step "The check" halfstep tiny tiny-mxfp8
step "And back to BF16" glm-convert --quiet --dtype bf16 tiny-mxfp8.ckpt tiny-back.ckpt

step "The main line: reshard the import to 4 pipeline and 2 expert ranks" \
    glm-reshard --quiet --tp 1 --pp 4 --ep 2 tiny.ckpt tiny-pp4.ckpt
step "Both hold the same" glm-verify diff --quiet tiny.ckpt tiny-pp4.ckpt
step "Export the resharded checkpoint" glm-export --quiet tiny-pp4.ckpt exported
step "The export equals the original" glm-verify diff --quiet tiny exported
step "Down to the files" glm-export --quiet --same-files tiny-pp4.ckpt same-files
step "Byte for byte" diff -r tiny same-files

step "Text to train on: the suite's own manual pages, a byte a token" \
    glm-data build --quiet manual.h5 "$root"/fixtures/demo/manual/*
step "Train 20 of the recipe's 30 steps, with two checkpoints, and stop" \
    glm-train --set exit_interval=20 "$root/fixtures/recipes/tiny-demo.yaml"
step "A new process goes on to the end" glm-train --resume "$root/fixtures/recipes/tiny-demo.yaml"
step "Has it learned?" losscurve tiny.run "$root/fixtures/demo/losses.json"
step "The curve as a picture" glm-inspect --metrics tiny.run --svg curve.svg
step "Reshard what was trained, optimizer state and all" \
    glm-reshard --quiet --tp 2 --pp 2 --ep 4 tiny.run/step-000000030 trained.ckpt
step "Both hold the same" glm-verify diff --quiet --section all tiny.run/step-000000030 trained.ckpt
step "Is every byte as it was written?" glm-verify integrity --quiet trained.ckpt
step "Export the trained weights" glm-export --quiet trained.ckpt trained
step "The export equals what was trained" glm-verify diff --quiet trained trained.ckpt
step "Did the restart change a bit? The same recipe, with a restart and without" \
    glm-verify resume --quiet --steps 3,3 "$root/fixtures/recipes/tiny-demo.yaml"

printf '\nDone in %s.\n' "$(since "$begin")"
