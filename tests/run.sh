#!/bin/bash
# run.sh [--quick|--long]: builds and runs every test and ends with one line,
#
#     N passed, N failed, N skipped
#
# and status 0 if none failed. Everything is built first; then the tests run in this order, JOBS of
# them and one that may wait at the same time, so a section begins while the last tests of the one
# before it still run:
#   source      tools/layers.sh, make headers, mandoc -Tlint, tests/mutants
#   unit        each tests/FOLDER/test_SUBJECT (Criterion), a process per test
#   scripts     tests/scripts/test_*.sh and test_*.py
#   lines       fixtures/cli/CASE: command lines with their output (tests/cli/run_cases.sh)
#   examples    the EXAMPLES of the manual pages (tests/cli/run_examples.sh)
#   asan        the unit tests again under AddressSanitizer and UBSan   (not with --quick)
#   fuzz        each fuzzer for a minute (with --long: ten), and what of its parser the corpus
#               reaches                                                 (not with --quick)
#   long        valgrind on the unit tests (Criterion's threads leave blocks "possibly lost" in what
#               ends early, so definite leaks are what counts); tests/long/test_*; the planted defects of
#               tests/mutants, which tests must find                    (only with --long)
#
# Under the sanitizers and valgrind TESTS_BRIEF=1 spares tests their repetitions
# (tests/support/brief.h): the same code is gone through there, and compared in full in "unit". The
# limits of time are for what hangs: ten times what a test takes on a quiet machine and more.
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

all=$(mktemp -d "${TMPDIR:-/tmp}/glm-test-XXXXXX") || exit 1
trap 'rm -rf "$all"' EXIT
work=$all # of one test; a test that runs beside others has its own below it
passed=0 failed=0 skipped=0
began=$SECONDS

# Seconds since the beginning, and what the processors worked in them.
section() {
    times > "$all/times" # not in a subshell, which has times of its own
    printf '== %s (%d s, %s s of processors)\n' "$1" $((SECONDS - began)) "$(tail -1 "$all/times" |
        awk -F'[ms ]+' '{ printf "%.0f", $1 * 60 + $2 + $3 * 60 + $4 }')"
}

# ---- JOBS at the same time ----------------------------------------------------------------------

running=0 most=$JOBS
# One of the functions below with its arguments, as soon as fewer than `most` run.
start() {
    while [ $running -ge "$most" ]; do finish; done
    running=$((running + 1))
    (
        work=$(mktemp -d "$all/XXXXXX") passed=0 failed=0 skipped=0
        "$@" > "$work/says" 2>&1
        echo "$passed $failed $skipped" > "$work/counts"
        mv "$work" "$work.ended"
    ) &
}
# Waits for any one, then shows and counts what has come to its end.
finish() {
    local ended p f s
    wait -n || failed=$((failed + 1)) # it did not come to its own end
    running=$((running - 1))
    for ended in "$all"/*.ended; do
        [ -e "$ended" ] || continue
        cat "$ended/says"
        read -r p f s < "$ended/counts"
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
        rm -rf "$ended"
    done
}
finish_all() {
    while [ $running -gt 0 ]; do finish; done
}

# ---- one test -----------------------------------------------------------------------------------

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

# ---- many of a kind -----------------------------------------------------------------------------

make_all() { # name, words for make: with all processors, nothing beside it
    local name=$1
    shift
    check "build ($name)" 3600 "$MAKE" --no-print-directory -j"$JOBS" -k "$@"
}

unit_tests() { # config, seconds each, words in front
    local config=$1 limit=$2 t
    shift 2
    for t in tests/*/test_*.c; do
        [ -e "$t" ] || continue
        t=${t%.c}
        start criterion "$config/$t" "$limit" "$@" "build/$config/$t" --jobs 1 --color=never
    done
}

scripts_in() { # folder, seconds each
    local t
    for t in "$1"/test_*.sh; do
        [ -e "$t" ] && start script "$t" "$2" bash "$t"
    done
    for t in "$1"/test_*.py; do
        [ -e "$t" ] || continue
        if [ -n "$PYTHON" ]; then
            start script "$t" "$2" "$PYTHON" "$t"
        else
            skip "$t" "no Python environment (make venv)"
        fi
    done
}

fuzzers() { # seconds each
    local f
    for f in tests/fuzz/fuzz_*.c; do
        f=${f##*/fuzz_}
        start script "fuzz ${f%.c}" $(($1 * 4 + 1800)) \
            "$MAKE" --no-print-directory FUZZ_SECONDS="$1" "fuzz-${f%.c}"
        start script "fuzz coverage ${f%.c}" 1800 tests/fuzz/coverage.sh "${f%.c}"
    done
}

# ---- the tests ----------------------------------------------------------------------------------

section build
make_all release all test-programs emulated
if [ "$mode" != --quick ]; then
    make_all asan CONFIG=asan test-programs
    if command -v clang > /dev/null; then make_all fuzz fuzzers; fi
fi

section source
start check "tools/layers.sh" 600 tools/layers.sh
start check "make headers" 1800 "$MAKE" --no-print-directory headers
start check "patches of tests/mutants apply" 600 tools/lint_patches.sh
if command -v mandoc > /dev/null; then
    for page in man/*.[1-9]; do
        [ -e "$page" ] && start check "mandoc -Tlint $page" 600 tools/lint_man.sh "$page"
    done
else
    skip "mandoc -Tlint" "mandoc is not installed"
fi

# From here on tests wait for disks, hubs and each other's processes: one more of them keeps the
# processors at work.
[ "$JOBS" -eq 1 ] || most=$((JOBS + 1))
section unit
unit_tests release 3600

section scripts
scripts_in tests/scripts 3600
scripts_in tests/cli 3600

section lines
start script "fixtures/cli" 3600 tests/cli/run_cases.sh

section examples
start script "man examples" 3600 tests/cli/run_examples.sh

if [ "$mode" != --quick ]; then
    section asan
    TESTS_BRIEF=1 ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1 \
        unit_tests asan 3600

    section fuzz
    # They end by the clock: two on a processor, or in the long run one, as much as it can.
    case $mode in --long) most=$JOBS ;; *) most=$((2 * JOBS)) ;; esac
    if command -v clang > /dev/null; then
        case $mode in --long) fuzzers 600 ;; *) fuzzers 60 ;; esac
    else
        skip fuzz "clang is not installed"
    fi
fi
finish_all

if [ "$mode" = --long ]; then
    section long
    # BLIS' kernels number 5 (penryn) have no fused multiply-add, for each lane of which valgrind calls a
    # function: Muon's products take a tenth of the time.
    [ "$(uname -m)" != x86_64 ] || export BLIS_ARCH_TYPE=5
    TESTS_BRIEF=1 unit_tests release 14400 valgrind --quiet --error-exitcode=99 --leak-check=full \
        --show-leak-kinds=definite --errors-for-leak-kinds=definite --trace-children=yes \
        --suppressions="$PWD/tests/valgrind.supp"
    unset BLIS_ARCH_TYPE
    scripts_in tests/long 14400
    start script tests/mutants 14400 tests/mutants/run.sh
    start script tests/mutants/switches 7200 tests/mutants/switches.sh
    finish_all
fi

section end
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
