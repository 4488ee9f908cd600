#!/bin/bash
# run_examples.sh [PAGE…]: runs the EXAMPLES of the manual pages, as a reader would type them.
#
# The convention: in .Sh EXAMPLES each command is one line `.Dl glm-…` (no prompt). The lines of a
# page run in their order, in one folder that holds the model directory `tiny` and its checkpoint
# `tiny.ckpt` (all that scratch.sh lists), hf:// names from a hub on loopback; each must end with status 0, unless the sentence before it says `ends with status N`.
# shellcheck source=tests/cli/scratch.sh
. "$(dirname "$0")/scratch.sh"
scratch_model || exit 0
bad=0

# Prints "status TAB command" for each example of a page.
examples() {
    awk '
    /^\.Sh / { in_examples = ($2 == "EXAMPLES"); status = 0; next }
    !in_examples { next }
    match($0, /ends with status [0-9]+/) { status = substr($0, RSTART + 17, RLENGTH - 17) }
    /^\.Dl glm-/ { sub(/^\.Dl /, ""); print status "\t" $0; status = 0 }
    ' "$1" | sed -e 's/\\-/-/g' -e "s/\\\\(aq/'/g" -e 's/\\e/\\/g' -e 's/\\&//g'
}

cd "$root" || exit 1
[ $# -gt 0 ] || set -- man/*.1
for page in "$@"; do
    scratch_new
    if grep -q '^\.Dl .*tiny-a\.ckpt' "$page"; then
        (cd "$root" && scratch_golden) || exit 1
    fi
    if grep -q '^\.Dl .*hf://' "$page" && ! scratch_hub; then
        echo "FAIL ${page##*/}: the hub of the examples did not start"
        sed 's/^/    /' "$scratch_all/log"
        exit 1
    fi
    number=0
    while IFS=$'\t' read -r wanted line; do
        number=$((number + 1))
        name="${page##*/}:$number: $line"
        if [ ! -x "$BIN/${line%% *}" ]; then
            echo "SKIP $name: ${line%% *} is not built"
            continue
        fi
        (cd "$scratch" && timeout 300 bash -c "$line") > "$scratch_all/log" 2>&1 < /dev/null
        status=$?
        if [ $status -eq "$wanted" ]; then
            echo "ok $name"
        else
            echo "FAIL $name: status $status, expected $wanted"
            sed 's/^/    /' "$scratch_all/log"
            bad=1
        fi
    done < <(examples "$root/$page")
    if [ $number -eq 0 ]; then
        echo "FAIL ${page##*/}: no examples"
        bad=1
    fi
done
exit $bad
