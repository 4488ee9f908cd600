#!/bin/bash
# A real full disk: import onto a file system that is too small, by refusal before writing and by
# running out in the middle. Needs root for a tmpfs.
#
#   - too small by what is needed: status 4 before anything is written, with needed and free bytes
#   - filled by somebody else while we write: status 4, no target; with room again the same command
#     completes, and glm-verify finds it intact
cd "$(dirname "$0")/../.." || exit 1
: "${BIN:=$PWD/build/release/bin}" "${TOOLS:=$PWD/build/release/tools}"
for need in "$BIN/glm-import" "$BIN/glm-verify"; do
    [ -x "$need" ] || { echo "SKIP full_disk: $need is not built"; exit 77; }
done
work=$(mktemp -d "${TMPDIR:-/tmp}/glm-full-XXXXXX") || exit 1
mkdir "$work/disk"
if ! mount -t tmpfs -o size=8m tmpfs "$work/disk" 2> /dev/null; then
    rm -rf "$work"
    echo "SKIP full_disk: cannot mount a tmpfs (not root?)"
    exit 77
fi
trap 'umount "$work/disk"; rm -rf "$work"' EXIT
failed=0
check() { # name, condition that must hold
    if eval "$2"; then echo "ok $1"; else echo "FAIL $1: $2; $(tail -2 "$work/err")"; failed=1; fi
}

"$TOOLS/toy" --config fixtures/configs/t1.json --files 4 --out "$work/src" || exit 1
"$BIN/glm-import" --quiet "$work/src" "$work/disk/ckpt" 2> "$work/err"
status=$?
check "too_small_is_refused_with_status_4" "[ $status -eq 4 ]"
check "too_small_says_how_many_bytes" "grep -Eq '[0-9]{6,}' $work/err"
check "too_small_leaves_no_target" "[ ! -e $work/disk/ckpt ]"
check "too_small_writes_nothing" \
    "[ -z \"\$(find $work/disk -name 'shard-*' -size +64k 2> /dev/null)\" ]"
rm -rf "$work/disk/"*

# Room by the figures, but the disk fills while we write: most of it is taken once we have begun.
mount -o remount,size=24m "$work/disk"
filler=
(
    while [ -z "$(find "$work/disk" -name 'shard-*' 2> /dev/null)" ]; do :; done
    head -c 20m /dev/zero > "$work/disk/filler" 2> /dev/null
) &
filler=$!
"$BIN/glm-import" --quiet --threads 1 "$work/src" "$work/disk/ckpt" 2> "$work/err"
status=$?
wait $filler
if [ $status -eq 0 ]; then
    echo "SKIP full_in_the_middle: the import was done before the disk was full"
else
    check "full_in_the_middle_ends_with_status_4" "[ $status -eq 4 ]"
    check "full_in_the_middle_leaves_no_target" "[ ! -e $work/disk/ckpt ]"
    check "full_in_the_middle_names_the_file" "grep -q ckpt.partial/ $work/err"
fi
rm -f "$work/disk/filler"
[ -e "$work/disk/ckpt" ] || "$BIN/glm-import" --quiet "$work/src" "$work/disk/ckpt" 2> "$work/err"
check "with_room_again_it_completes" "$BIN/glm-verify integrity --quiet $work/disk/ckpt > /dev/null"
exit $failed
