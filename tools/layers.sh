#!/bin/sh
# layers.sh: checks the direction of includes. Dependencies go down this list, never up:
#
#     cli > verify > train > convert > ckpt > kernels/base      and      train > kernels
#
# From another folder only the door is included (ckpt/ckpt.h, convert/convert.h, …); the headers of
# kernels/base are for all. ckpt/h5error.h is the one door to libhdf5, for train's token datasets too.
# Tests may include anything.
cd "$(dirname "$0")/.." || exit 1

# What a folder may include besides itself.
allowed() {
    case $1 in
    kernels/base) ;;
    kernels) echo 'kernels/base/' ;;
    ckpt) echo 'kernels/base/' ;;
    plugin) echo 'kernels/base/' ;;
    convert) echo 'kernels/base/ ckpt/ckpt.h' ;;
    train) echo 'kernels/base/ ckpt/ckpt.h ckpt/h5error.h convert/convert.h kernels/ops.h kernels/kernels.h' ;;
    verify) echo 'kernels/base/ ckpt/ckpt.h convert/convert.h train/train.h kernels/ops.h kernels/kernels.h' ;;
    cli) echo 'kernels/base/ ckpt/ckpt.h convert/convert.h train/train.h verify/verify.h' ;;
    esac
}

bad=0
for folder in kernels/base kernels ckpt convert train verify cli plugin; do
    [ -d "$folder" ] || continue
    files=$(find "$folder" -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh')
    [ "$folder" = kernels ] && files=$(echo "$files" | grep -v '^kernels/base/')
    [ -n "$files" ] || continue
    # shellcheck disable=SC2086 # no spaces in our names
    grep -Hn '^ *# *include *"' $files /dev/null | {
        wrong=0
        while IFS= read -r line; do
            header=${line#*\"}
            header=${header%%\"*}
            ok=no
            for good in "$folder/" $(allowed "$folder"); do
                case $header in "$good"*) ok=yes ;; esac
            done
            if [ $ok = no ]; then
                echo "layers: ${line%%:*}:$(echo "$line" | cut -d: -f2): $folder may not include \"$header\""
                wrong=1
            fi
        done
        exit $wrong
    } || bad=1
done
exit $bad
