#!/bin/bash
# run.sh [NAME...]: shows that tests can fail. Each tests/mutants/NAME.patch plants one defect, the
# kind that a user of another tool reported; in a copy of the tree the named test must then fail.
#
# A patch starts with lines above the first "diff":
#   What: the defect, in a sentence
#   Test: tests/ckpt/test_table FILTER     a Criterion program and the pattern of its tests
#   Test: field B-01                       a test of tests/scripts/test_field_reports.py
#   Test: bash tests/scripts/test_x.sh     or any command, run in the root of the copy
#   Needs: words                           files that must exist, else the patch is skipped
# Every test is run without a patch first: one that fails anyway proves nothing. VERBOSE=1 shows
# with what words a test failed. Prints "ok NAME", "FAIL NAME: reason" or "SKIP NAME: reason".
cd "$(dirname "$0")/../.." || exit 1
: "${JOBS:=2}" "${MAKE:=make}" "${PYTHON:=$PWD/.venv/bin/python}"
export BIN=build/release/bin TOOLS=build/release/tools
copy=$(mktemp -d "${TMPDIR:-/tmp}/glm-mutant-XXXXXX") || exit 1
trap 'rm -rf "$copy"' EXIT
names=("$@")
[ ${#names[@]} -gt 0 ] || for p in tests/mutants/*.patch; do names+=("$(basename "$p" .patch)"); done

# What git knows, as it is here; build products too, with their times, so that little is built.
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' f; do
    [ -e "$f" ] && printf '%s\0' "$f"
done | xargs -0 cp -a --parents -t "$copy"
mkdir -p "$copy/build"
[ -d build/release ] && cp -a build/release "$copy/build/"
cd "$copy" || exit 1
git init -q . # so that git apply and git ls-files work here

build() { # the test's program, or what its command needs
    case $1 in
        tests/*) "$MAKE" -j"$JOBS" "build/release/$1" > log 2>&1 ;;
        field | python3) "$MAKE" -j"$JOBS" all > log 2>&1 ;; # commands and tools
        *) "$MAKE" -j"$JOBS" all test-programs > log 2>&1 ;;
    esac
}
run_test() {
    case $1 in
        tests/*) timeout 300 "build/release/$1" ${2:+--filter "$2"} > log 2>&1 ;;
        field) timeout 300 "$PYTHON" tests/scripts/test_field_reports.py "$2" > log 2>&1 ;;
        *) timeout 600 "$@" > log 2>&1 ;;
    esac
}
# A Criterion run whose filter matches nothing passes, and so does a test that skips itself.
counted() {
    case $1 in
        tests/*) sed 's/\x1b\[[0-9;]*m//g' log | grep -q 'Tested: [1-9]' ;;
        field) grep -q '^ok ' log ;;
        *) true ;;
    esac
}
test_of() { sed -n 's/^Test: //p' "tests/mutants/$1.patch" | head -1; }

# Every test once without any defect: what it says then, by its words.
declare -A sound
for name in "${names[@]}"; do
    test=$(test_of "$name")
    [ -n "$test" ] && [ -z "${sound[$test]:-}" ] || continue
    read -ra words <<< "$test"
    if [ "${words[0]}" = field ] && [ ! -x "$PYTHON" ]; then
        sound[$test]="SKIP no Python environment (make venv)"
    elif ! build "${words[0]}"; then
        sound[$test]="FAIL the tree does not build: $(grep -m1 error log)"
    elif run_test "${words[@]}" && counted "${words[0]}"; then
        sound[$test]=ok
    elif grep -q '^SKIP ' log; then
        sound[$test]="SKIP $(grep -m1 '^SKIP ' log | cut -d' ' -f2-)"
    else
        sound[$test]="FAIL the test fails (or tests nothing) without the defect: $test: $(
            grep -am1 '^FAIL' log | cut -c1-900)"
    fi
done

status=0
for name in "${names[@]}"; do
    patch=tests/mutants/$name.patch
    test=$(test_of "$name")
    read -ra words <<< "$test"
    verdict=
    for need in $(sed -n 's/^Needs: //p' "$patch"); do
        [ -e "$need" ] || verdict="SKIP $name: $need is not there"
    done
    if [ -n "$verdict" ]; then
        :
    elif [ -z "$test" ]; then
        verdict="FAIL $name: no Test: line"
    elif [ "${sound[$test]}" != ok ]; then
        verdict="${sound[$test]%% *} $name: ${sound[$test]#* }"
    elif ! git apply "$patch" 2> log; then
        verdict="FAIL $name: the patch does not apply: $(head -1 log)"
    else
        if ! build "${words[0]}"; then
            verdict="FAIL $name: the defect does not compile: $(grep -m1 error log)"
        elif run_test "${words[@]}"; then
            verdict="FAIL $name: the test passes with the defect: $test"
        else
            [ -z "${VERBOSE:-}" ] || grep -aE '^FAIL|Assert|error' log | head -3
            verdict="ok $name"
        fi
        git apply -R "$patch"
    fi
    case $verdict in FAIL*) status=1 ;; esac
    echo "$verdict"
done
exit $status
