#!/bin/bash
# run_cases.sh [--update] [CASE…]: command lines with their output.
#
# fixtures/cli/CASE/cmd is run by bash in a folder that holds the model directory `tiny` and its
# checkpoint `tiny.ckpt`; CASE/stdout, stderr and status hold what must come (absent: nothing, 0).
# Before comparing, what differs between runs is replaced in the output:
#     $TMP the folder, $ROOT the source tree, $VERSION, $TIME ("1.2 s"), $RATE ("1.25 GB/s"),
#     $SHA256 (64 digits)
# --update writes the expected files from what came; read the difference before committing it.
# shellcheck source=tests/cli/scratch.sh
. "$(dirname "$0")/scratch.sh"
update=no
[ "${1:-}" = --update ] && { update=yes; shift; }
cases=("$@")
[ $# -gt 0 ] || cases=("$root"/fixtures/cli/*/)
scratch_model || exit 0
version=$(sed -n 's/^.define GLM_VERSION "\(.*\)"/\1/p' "$root/kernels/base/version.h")
bad=0

plain() {
    sed -E -e "s|$scratch|\$TMP|g" -e "s|$root|\$ROOT|g" \
        -e "s|\\b${version//./\\.}\\b|\$VERSION|g" -e 's#\b[0-9a-f]{64}\b#$SHA256#g' \
        -e 's#[0-9.]+ [kMGT]?B/s#$RATE#g' -e 's#\b[0-9]+ (min|h) [0-9]+ (s|min)\b#$TIME#g' \
        -e 's#\b[0-9]+(\.[0-9]+)? s\b#$TIME#g' -e 's#("seconds": )[0-9.e-]+#\1$TIME#' "$1"
}

for case in "${cases[@]}"; do
    case=${case%/}
    [ -d "$case" ] || case=$root/fixtures/cli/$case
    name=${case##*/}
    command=$(grep -o 'glm-[a-z]*' "$case/cmd" | head -1)
    if [ ! -x "$BIN/$command" ]; then
        echo "SKIP $name: $command is not built"
        continue
    fi
    scratch_new
    out=$scratch_all/$scratch_count.out
    mkdir "$out"
    (cd "$scratch" && ROOT=$root timeout 300 bash "$case/cmd") > "$out/1" 2> "$out/2" < /dev/null
    status=$?
    plain "$out/1" > "$out/stdout"
    plain "$out/2" > "$out/stderr"
    echo $status > "$out/status"
    if [ $update = yes ]; then
        for f in stdout stderr; do
            if [ -s "$out/$f" ]; then cp "$out/$f" "$case/$f"; else rm -f "$case/$f"; fi
        done
        if [ $status -ne 0 ]; then cp "$out/status" "$case/status"; else rm -f "$case/status"; fi
        continue
    fi
    same=yes
    for f in stdout stderr status; do
        wanted=$case/$f
        if [ ! -e "$wanted" ]; then
            wanted=$out/empty
            : > "$wanted"
            [ $f = status ] && echo 0 > "$wanted"
        fi
        diff -u --label "expected $f" --label "$f" "$wanted" "$out/$f" > "$out/diff" && continue
        [ $same = yes ] && echo "FAIL $name"
        sed 's/^/    /' "$out/diff"
        same=no
    done
    if [ $same = yes ]; then echo "ok $name"; else bad=1; fi
done
exit $bad
