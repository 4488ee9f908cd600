#!/bin/bash
# run.sh [NAME...]: shows that tests can fail. Each tests/mutants/NAME.patch plants one defect, the
# kind that a user of another tool reported; in a copy of the tree the named test must then fail.
#
# A patch starts with lines above the first "diff":
#   What: the defect, in a sentence
#   Test: tests/ckpt/test_table FILTER     a Criterion program and the pattern of its tests
#   Test: bash tests/scripts/test_x.sh     or any command, run in the root of the copy
#   Needs: words                           files that must exist, else the patch is skipped
# The same test is run without the patch first: a test that fails anyway proves nothing.
# Prints "ok NAME", "FAIL NAME: reason" or "SKIP NAME: reason".
cd "$(dirname "$0")/../.." || exit 1
: "${JOBS:=2}" "${MAKE:=make}"
export BIN=build/release/bin TOOLS=build/release/tools
copy=$(mktemp -d "${TMPDIR:-/tmp}/glm-mutant-XXXXXX") || exit 1
trap 'rm -rf "$copy"' EXIT
names=("$@")
[ ${#names[@]} -gt 0 ] || for p in tests/mutants/*.patch; do names+=("$(basename "$p" .patch)"); done

# What git knows, as it is here; build products too, with their times, so that little is built.
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' f; do
    [ -e "$f" ] && printf '%s\0' "$f"
done | cp -a --parents -t "$copy" $(tr '\0' '\n')
mkdir -p "$copy/build"
[ -d build/release ] && cp -a build/release "$copy/build/"
cd "$copy" || exit 1
git init -q . # so that git apply and git ls-files work here

build() { # the test's program, or everything
    case $1 in
        tests/*) "$MAKE" -j"$JOBS" "build/release/$1" > log 2>&1 ;;
        *) "$MAKE" -j"$JOBS" all test-programs > log 2>&1 ;;
    esac
}
run_test() {
    case $1 in
        tests/*) timeout 300 "build/release/$1" ${2:+--filter "$2"} > log 2>&1 ;;
        *) timeout 600 "$@" > log 2>&1 ;;
    esac
}
counted() { # a Criterion run with a filter that matches nothing passes: refuse it
    case $1 in
        tests/*) sed 's/\x1b\[[0-9;]*m//g' log | grep -q 'Tested: [1-9]' ;;
        *) true ;;
    esac
}

status=0
for name in "${names[@]}"; do
    patch=tests/mutants/$name.patch
    read -ra words < <(sed -n 's/^Test: //p' "$patch" | head -1)
    verdict=
    for need in $(sed -n 's/^Needs: //p' "$patch"); do
        [ -e "$need" ] || verdict="SKIP $name: $need is not there"
    done
    if [ -n "$verdict" ]; then
        :
    elif [ ${#words[@]} -eq 0 ]; then
        verdict="FAIL $name: no Test: line"
    elif ! build "${words[0]}"; then
        verdict="FAIL $name: the tree does not build: $(grep -m1 error log)"
    elif ! run_test "${words[@]}" || ! counted "${words[0]}"; then
        verdict="FAIL $name: the test fails (or tests nothing) without the defect"
    elif ! git apply "$patch" 2> log; then
        verdict="FAIL $name: the patch does not apply: $(head -1 log)"
    else
        if ! build "${words[0]}"; then
            verdict="FAIL $name: the defect does not compile: $(grep -m1 error log)"
        elif run_test "${words[@]}"; then
            verdict="FAIL $name: the test passes with the defect: ${words[*]}"
        else
            verdict="ok $name"
        fi
        git apply -R "$patch"
    fi
    case $verdict in FAIL*) status=1 ;; esac
    echo "$verdict"
done
exit $status
