#!/bin/sh
# lint.sh: what checks the source besides the compiler. Tools that are not installed are named.
cd "$(dirname "$0")/.." || exit 1
bad=0

run() { # tool, arguments
    if ! command -v "$1" > /dev/null; then
        echo "lint: $1 is not installed (make deps-more)" >&2
        bad=1
    elif ! "$@"; then
        bad=1
    fi
}

run tools/lint_man.sh man/*.[1-9]
run cppcheck --quiet --error-exitcode=1 --std=c11 --inline-suppr -I. \
    --enable=warning,portability --suppress=missingIncludeSystem --suppress=nullPointerOutOfMemory \
    kernels ckpt convert train verify cli
# shellcheck disable=SC2046 # no spaces in our names
run shellcheck -x -S warning $(git ls-files '*.sh') .ci/run
run tools/lint_patches.sh
# Which files, not each place: `make format` puts them right.
if command -v clang-format > /dev/null; then
    # shellcheck disable=SC2046 # no spaces in our names
    differ=$(clang-format --dry-run $(git ls-files '*.c' '*.h') 2>&1 |
        sed -n 's/^\([^ :]*\):[0-9].*/\1/p' | sort -u)
    for f in $differ; do
        echo "lint: $f: layout differs from .clang-format (make format)"
        bad=1
    done
else
    echo "lint: clang-format is not installed (make deps-more)" >&2
    bad=1
fi
exit $bad
