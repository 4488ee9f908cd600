#!/bin/bash
# resume.sh: a tiny model trained on the GPU: rung R1 (a restart changes no bit), the demo's losses, a
# checkpoint that the CPU reads. BIN and TOOLS name the programs.
set -u
cd "$(dirname "$0")/../.." || exit 1
root=$PWD work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
BIN=$(cd "$BIN" && pwd) TOOLS=$(cd "$TOOLS" && pwd)
PATH=$BIN:$TOOLS:$PATH
cd "$work" || exit 1
bad=0
check() { # name, command
    local name=$1
    shift
    if "$@" > out 2>&1; then
        echo "ok gpu/$name: $(tail -1 out)"
    else
        echo "FAIL gpu/$name"
        tail -5 out
        bad=1
    fi
}
recipe=$root/fixtures/recipes/tiny-demo.yaml
check tiny tiny "$root/fixtures/tiny-a-bf16" tiny
check import glm-import --quiet tiny tiny.ckpt
check data glm-data build --quiet manual.h5 "$root"/fixtures/demo/manual/*
check train glm-train --device cuda "$recipe"
check losses losscurve tiny.run "$root/fixtures/demo/losses.json"
check integrity glm-verify integrity --quiet tiny.run/step-000000030
for set in bf16=false bf16=true; do
    check "resume $set" glm-verify resume --quiet --steps 3,3 --set GLM.device=cuda --set $set "$recipe"
    check "resume adam $set" glm-verify resume --quiet --steps 2,3 --set GLM.device=cuda \
        --set $set --set optimizer=adam "$recipe"
done
exit $bad
