#!/bin/bash
# pack.sh [FOLDER]: what GPU tests and training need on a machine without this one's packages, in
# FOLDER (build/gpu): bin, tools, lib as they lie in build/release, and deps with the shared libraries
# of all of them but glibc's, the driver's and CUDA's. tests/gpu/run.sh finds it there.
cd "$(dirname "$0")/../.." || exit 1
to=${1:-build/gpu}
from=build/release
rm -rf "$to"
mkdir -p "$to/bin" "$to/tools" "$to/lib" "$to/deps" || exit 1
for f in "$from"/bin/glm-* "$from"/tools/gpu_* "$from"/tools/tiny "$from"/tools/parity "$from"/tools/losscurve "$from"/lib/*.so; do
    [ -f "$f" ] || continue
    folder=$(basename "$(dirname "$f")")
    strip -g -o "$to/$folder/$(basename "$f")" "$f" || exit 1
done
for f in "$to"/bin/* "$to"/tools/* "$to"/lib/*; do
    ldd "$f" 2> /dev/null | awk '$3 ~ /^\// { print $3 }'
done | sort -u | while read -r so; do
    case ${so##*/} in
    libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | libresolv.so* | ld-linux*) ;;
    libcu* | libnv*) ;;
    *) cp -L "$so" "$to/deps/" ;;
    esac
done
du -sh "$to" | cut -f1 | sed "s|^|$to: |"
