#!/bin/bash
# Sourced by the runners of command lines: a scratch folder that holds what examples speak of.
#
#     tiny        a Hugging Face model directory of a few hundred kilobytes
#     tiny.ckpt   the same, imported at TP 2, PP 2, EP 4
#     tiny-demo.yaml   fixtures/recipes/tiny-demo.yaml, which trains tiny.ckpt on manual.h5
#     manual/     the manual pages, text to make manual.h5 of
#
# and, for those that ask with scratch_golden after scratch_new,
#
#     tiny-a.ckpt, tiny-a.safetensors   weights that transformers ran, and what came of it
#
# and, for those that speak of hf://, after scratch_hub a hub on loopback, HF_ENDPOINT, that has
# zai-org/GLM-5.2: a small model of its shape with 24 experts.
#
# scratch_new sets $scratch to a new folder with copies of all (made once), on the PATH the
# commands of $BIN. Everything is removed at exit.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
: "${BIN:=$root/build/release/bin}" "${TOOLS:=$root/build/release/tools}"
BIN=$(realpath -m "$BIN") TOOLS=$(realpath -m "$TOOLS") # command lines run in other folders
PATH=$BIN:$PATH
export PATH BIN TOOLS LC_ALL=C.UTF-8

scratch_all=$(mktemp -d "${TMPDIR:-/tmp}/glm-cli-XXXXXX") || exit 1
hub_pid=
trap '[ -z "$hub_pid" ] || kill "$hub_pid"; rm -rf "$scratch_all"' EXIT
scratch_count=0

# Leaves the model and its checkpoint in $scratch_all/model; says why not and returns 1.
scratch_model() {
    local m=$scratch_all/model
    [ -e "$m" ] && return 0
    if [ ! -x "$TOOLS/toy" ] || [ ! -x "$BIN/glm-import" ]; then
        echo "SKIP ${0##*/}: toy or glm-import is not built"
        return 1
    fi
    mkdir "$m" || return 1
    (cd "$root" && "$TOOLS/toy" --config fixtures/configs/tiny-a.json --files 2 --gauss \
        --out "$m/tiny") > "$scratch_all/log" 2>&1 \
        && "$BIN/glm-import" --quiet --tp 2 --pp 2 --ep 4 "$m/tiny" "$m/tiny.ckpt" \
            >> "$scratch_all/log" 2>&1 \
        && cp "$root/fixtures/recipes/tiny-demo.yaml" "$m" \
        && mkdir "$m/manual" && cp "$root"/man/*.[15] "$m/manual" && return 0
    echo "FAIL ${0##*/}: the tiny model could not be made"
    sed 's/^/    /' "$scratch_all/log"
    exit 1
}

scratch_new() {
    scratch_count=$((scratch_count + 1))
    scratch=$scratch_all/$scratch_count
    mkdir "$scratch"
    cp -r "$scratch_all/model/." "$scratch"
}

scratch_golden() {
    local g=$scratch_all/golden
    if [ ! -e "$g" ]; then
        mkdir "$g" || return 1
        if ! { "$TOOLS/tiny" "$root/fixtures/tiny-a-f32" "$scratch_all/tiny-a" \
            && "$BIN/glm-import" --quiet "$scratch_all/tiny-a" "$g/tiny-a.ckpt" \
            && cp "$root/fixtures/parity/tiny-a.safetensors" "$g"; } > "$scratch_all/log" 2>&1; then
            echo "FAIL ${0##*/}: the golden checkpoint could not be made"
            sed 's/^/    /' "$scratch_all/log"
            exit 1
        fi
    fi
    cp -r "$g/." "$scratch"
}

scratch_hub() {
    local m=$scratch_all/hub
    [ -e "$m" ] && return 0
    mkdir "$m" || return 1
    sed 's/"n_routed_experts": 12/"n_routed_experts": 24/' "$root/fixtures/configs/t1.json" \
        > "$m/config.json"
    "$TOOLS/toy" --config "$m/config.json" --files 4 --out "$m/model" > "$scratch_all/log" 2>&1 \
        || return 1
    python3 "$root/tests/hub/server.py" "$m/model" --repo zai-org/GLM-5.2 \
        > "$m/addresses" 2>> "$scratch_all/log" &
    hub_pid=$!
    for _ in $(seq 100); do
        [ -s "$m/addresses" ] && break
        sleep 0.1
    done
    HF_ENDPOINT=$(sed -n 's/.*"hub": "\([^"]*\)".*/\1/p' "$m/addresses")
    export HF_ENDPOINT HF_HOME=$m/home
    [ -n "$HF_ENDPOINT" ]
}
