#!/bin/bash
# run.sh [--quick|--long]: builds and runs every test and ends with one line,
#
#     N passed, N failed, N skipped
#
# and status 0 if none failed. What it runs, in this order:
#   source      tools/layers.sh, make headers, mandoc -Tlint
#   unit        each tests/FOLDER/test_SUBJECT (Criterion), a process per test
#   scripts     tests/scripts/test_*.sh and test_*.py
#   lines       fixtures/cli/CASE: command lines with their output (tests/cli/run_cases.sh)
#   examples    the EXAMPLES of the manual pages (tests/cli/run_examples.sh)
#   asan        the unit tests again under AddressSanitizer and UBSan   (not with --quick)
#   fuzz        each fuzzer for a minute (with --long: ten)             (not with --quick)
#   long        valgrind on the unit tests; tests/long/test_*; the planted defects of
#               tests/mutants, which tests must find                   (only with --long)
#
# A script is one test, unless it prints lines "ok NAME", "FAIL NAME", "SKIP NAME: reason": then
# each such line is one. It ends 0 (passed), 77 (skipped; its last line says why), else failed.
# Output is shown for what failed. Scripts find BIN, TOOLS, PYTHON and JOBS in the environment.
cd "$(dirname "$0")/.." || exit 1
mode=${1:-}
: "${JOBS:=$(nproc)}" "${MAKE:=make}" "${PYTHON:=.venv/bin/python}"
export JOBS PYTHON LC_ALL=C.UTF-8
export BIN=$PWD/build/release/bin TOOLS=$PWD/build/release/tools
case $PYTHON in */*) PYTHON=$(cd "$(dirname "$PYTHON")" 2> /dev/null && pwd)/${PYTHON##*/} ;; esac
[ -x "$PYTHON" ] || PYTHON=

work=$(mktemp -d "${TMPDIR:-/tmp}/glm-test-XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0
began=$SECONDS

# Seconds since the beginning, and what the processors worked in them.
section() {
    times > "$work/times" # not in a subshell, which has times of its own
    printf '== %s (%d s, %s s of processors)\n' "$1" $((SECONDS - began)) "$(tail -1 "$work/times" |
        awk -F'[ms ]+' '{ printf "%.0f", $1 * 60 + $2 + $3 * 60 + $4 }')"
}
pass() { passed=$((passed + ${1:-1})); }
skip() { # name, reason
    skipped=$((skipped + 1))
    echo "SKIP $1: $2"
}
fail() { # name, file with its output
    failed=$((failed + 1))
    echo "FAIL $1"
    [ -z "${2:-}" ] || tail -n 60 "$2" | sed 's/^/    /'
}

# One command that passes or fails as a whole: name, seconds, words.
check() {
    local name=$1 limit=$2
    shift 2
    if timeout -k 10 "$limit" "$@" > "$work/out" 2>&1; then
        pass
    else
        fail "$name" "$work/out"
    fi
}

# A program of Criterion: name, seconds, words. Its closing line has the counts; without one the
# program itself did not work.
criterion() {
    local name=$1 limit=$2 status line
    shift 2
    timeout -k 10 "$limit" "$@" > "$work/out" 2>&1
    status=$?
    line=$(sed 's/\x1b\[[0-9;]*m//g' "$work/out" | grep -a 'Synthesis: Tested:' | tail -1)
    if [ -z "$line" ]; then
        [ $status -eq 124 ] && echo "$name: longer than $limit s" >> "$work/out"
        fail "$name" "$work/out"
        return
    fi
    # shellcheck disable=SC2046 # numbers
    set -- $(echo "$line" | grep -o '[0-9]\+')
    local good=$2 bad=$(($3 + $4))
    grep -a '^SKIP ' "$work/out"
    local skips
    skips=$(grep -ac '^SKIP ' "$work/out")
    # A test that skipped itself has passed in Criterion's eyes.
    [ "$skips" -le "$good" ] || skips=$good
    skipped=$((skipped + skips))
    pass $((good - skips))
    [ $bad -eq 0 ] && [ $status -ne 0 ] && bad=1
    if [ $bad -gt 0 ]; then
        fail "$name ($bad)" "$work/out"
        failed=$((failed + bad - 1))
    fi
}

# A script: name, seconds, words.
script() {
    local name=$1 limit=$2 status lines
    shift 2
    timeout -k 10 "$limit" "$@" > "$work/out" 2>&1
    status=$?
    [ $status -eq 124 ] && echo "longer than $limit s" >> "$work/out"
    lines=$(grep -acE '^(ok|FAIL|SKIP) ' "$work/out")
    if [ $status -eq 77 ]; then
        skip "$name" "$(tail -1 "$work/out" | sed 's/^SKIP [^:]*: //')"
    elif [ "$lines" -eq 0 ]; then
        if [ $status -eq 0 ]; then pass; else fail "$name" "$work/out"; fi
    else
        grep -a '^SKIP ' "$work/out"
        pass "$(grep -ac '^ok ' "$work/out")"
        skipped=$((skipped + $(grep -ac '^SKIP ' "$work/out")))
        local bad
        bad=$(grep -ac '^FAIL ' "$work/out")
        [ "$bad" -eq 0 ] && [ $status -ne 0 ] && bad=1
        if [ "$bad" -gt 0 ]; then
            fail "$name ($bad)" "$work/out"
            failed=$((failed + bad - 1))
        fi
    fi
}

build() { # config, targets
    local config=$1
    shift
    "$MAKE" --no-print-directory -j"$JOBS" -k CONFIG="$config" "$@" > "$work/out" 2>&1
}

unit_tests() { # config, seconds each, words in front
    local config=$1 limit=$2 t
    shift 2
    for t in tests/*/test_*.c; do
        t=${t%.c}
        criterion "$config/$t" "$limit" "$@" "build/$config/$t" --jobs "$JOBS" --color=never
    done
}

scripts_in() { # folder, seconds each
    local t
    for t in "$1"/test_*.sh; do
        [ -e "$t" ] && script "$t" "$2" bash "$t"
    done
    for t in "$1"/test_*.py; do
        [ -e "$t" ] || continue
        if [ -n "$PYTHON" ]; then
            script "$t" "$2" "$PYTHON" "$t"
        else
            skip "$t" "no Python environment (make venv)"
        fi
    done
}

section build
if build release all test-programs emulated; then
    pass
else
    fail "build (release)" "$work/out"
fi

section source
check "tools/layers.sh" 60 tools/layers.sh
check "make headers" 300 "$MAKE" --no-print-directory -j"$JOBS" headers
if command -v mandoc > /dev/null; then
    for page in man/*.[1-9]; do
        [ -e "$page" ] && check "mandoc -Tlint $page" 20 tools/lint_man.sh "$page"
    done
else
    skip "mandoc -Tlint" "mandoc is not installed"
fi

section unit
unit_tests release 180

section scripts
scripts_in tests/scripts 600
scripts_in tests/cli 300

section lines
script "fixtures/cli" 300 tests/cli/run_cases.sh

section examples
script "man examples" 300 tests/cli/run_examples.sh

if [ "$mode" != --quick ]; then
    section asan
    if build asan test-programs; then
        pass
    else
        fail "build (asan)" "$work/out"
    fi
    ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1 \
        unit_tests asan 300

    section fuzz
    if ! grep -q '^fuzz:' Makefile; then
        skip fuzz "there are no fuzzers in this tree"
    elif ! command -v clang > /dev/null; then
        skip fuzz "clang is not installed"
    else
        seconds=60
        [ "$mode" = --long ] && seconds=600
        script fuzz 7200 "$MAKE" --no-print-directory FUZZ_SECONDS=$seconds FUZZ_JOBS="$JOBS" fuzz
    fi
fi

if [ "$mode" = --long ]; then
    section long
    unit_tests release 1800 valgrind --quiet --error-exitcode=99 --leak-check=full \
        --trace-children=yes
    scripts_in tests/long 7200
    script tests/mutants 7200 tests/mutants/run.sh
    script tests/mutants/switches 3600 tests/mutants/switches.sh
fi

section end
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
