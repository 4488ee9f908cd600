#!/bin/bash
# HDF5's own troubles, with the library's checkpoints (tests/support/main_smallckpt.c): locks that
# fail, no plugin folder, links and external storage in files that claim to be ours.
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
result() { # name, status
    if [ "$2" -eq 0 ]; then echo "ok $1"; else echo "FAIL $1"; fi
}
plugin=$(cd "$TOOLS/../plugin" && pwd) || exit 1
words="zstd training tp2,pp2,ep2"

# B-86: file systems whose locks fail with ENOLCK (37), EAGAIN (11) or 524.
cat > "$work/nolock.c" << 'C'
#include <errno.h>
#include <stdlib.h>
#include <sys/file.h>
int flock(int fd, int op)
{
    (void)fd;
    if (op & LOCK_UN)
        return 0;
    errno = atoi(getenv("FLOCK_ERRNO"));
    return -1;
}
C
${CC:-gcc} -shared -fPIC "$work/nolock.c" -o "$work/nolock.so" || exit 1
# shellcheck disable=SC2086 # words
"$TOOLS/smallckpt" "$work/plain" $words || exit 1
for number in 37 11 524; do
    # shellcheck disable=SC2086
    FLOCK_ERRNO=$number LD_PRELOAD=$work/nolock.so "$TOOLS/smallckpt" "$work/lock$number" $words &&
        diff -r "$work/plain" "$work/lock$number"
    result "B-86 flock fails with $number" $?
done

# B-89: our programs need no plugin; h5dump reads with ours, and cannot without.
mkdir "$work/none"
# shellcheck disable=SC2086
HDF5_PLUGIN_PATH=$work/none "$TOOLS/smallckpt" "$work/noplugin" $words &&
    diff -r "$work/plain" "$work/noplugin"
result "B-89 no plugin folder" $?
if command -v h5dump > /dev/null; then
    dump() { h5dump -d /opt/momentum/model.layers.0.mlp.up_proj.weight -s 0,0 -c 1,4 "$work/plain/index.h5" 2> "$work/err"; }
    HDF5_PLUGIN_PATH=$plugin dump | grep -q '(0,0): [-0-9.e]*, [-0-9.e]*, '
    result "B-89 h5dump with the plugin" $?
    HDF5_PLUGIN_PATH=$work/none dump | grep '(0,0)' | grep -vq nan
    result "B-89 control: h5dump without it" $((1 - $?))
else
    echo "SKIP B-89 h5dump: not installed"
fi

# B-73: external storage, links and virtual sources that point outside. Each is made with the file's
# size and digests right, as an attacker would; nothing of it may be opened.
if [ -z "${PYTHON:-}" ] || ! "$PYTHON" -c 'import h5py' 2> /dev/null; then
    echo "SKIP B-73: no h5py"
    exit
fi
cat > "$work/evil.py" << 'PY'
import hashlib, os, re, sys
import h5py, numpy as np
kind, folder = sys.argv[1:]
path = os.path.join(folder, "index.h5")
victim = os.path.join(os.path.dirname(folder), "secret")
with h5py.File(path, "r+", libver="v110", locking=False) as f:
    if kind == "external-storage":
        f.create_dataset("files/leak", (6,), "u1", external=[(victim, 0, 6)])
    elif kind == "external-link":
        f["files/leak"] = h5py.ExternalLink(victim, "/x")
    elif kind == "soft-link":
        f["files/leak"] = h5py.SoftLink("/../secret")
    else:
        layout = h5py.VirtualLayout((6,), "u1")
        layout[:] = h5py.VirtualSource(victim, "x", (6,))
        f.create_virtual_dataset("files/leak", layout)
data = bytearray(open(path, "rb").read())
head = data[:4096].split(b"\0")[0].decode()
head = re.sub("size .*", "size %d" % len(data), head)
head = re.sub("(?m)^sha256 .*", "sha256 " + hashlib.sha256(data[4096:]).hexdigest(), head)
body = head[:head.index("self ")]
head = body + "self " + hashlib.sha256(body.encode()).hexdigest() + "\n"
data[:4096] = head.encode().ljust(4096, b"\0")
open(path, "wb").write(data)
PY
echo secret > "$work/secret"
for kind in external-storage external-link soft-link virtual-source; do
    rm -rf "$work/evil"
    cp -r "$work/plain" "$work/evil"
    "$PYTHON" "$work/evil.py" $kind "$work/evil" || { echo "FAIL B-73 $kind: not made"; continue; }
    # The reader takes bytes by the manifest, where this is not listed: it must neither appear nor be
    # read. An access time older than the file's change is updated by any read, whatever the mount.
    touch -a -d '2001-01-01' "$work/secret"
    before=$(stat -c %X "$work/secret")
    rm -rf "$work/out"
    if [ -x "$BIN/glm-export" ]; then
        "$BIN/glm-export" "$work/evil" "$work/out" > "$work/log" 2>&1
        [ ! -e "$work/out/leak" ] && ! grep -rq '^secret$' "$work/out" 2> /dev/null &&
            [ "$(stat -c %X "$work/secret")" = "$before" ]
        result "B-73 $kind" $?
    else
        echo "SKIP B-73 $kind: glm-export is not built"
    fi
done
