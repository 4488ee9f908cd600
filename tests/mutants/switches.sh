#!/bin/bash
# switches.sh [NAME...]: shows that the tests of parity can fail. Each switch listed in
# kernels/cpu/mutate.h and train/mutate.h plants one known mistake of other programs (spec/glm-5.2.md
# 7 and 8.3) into the shipped source; built with it, in a folder of its own, the test of parity must
# fail. One that cannot show in these models must fail its operation's test: see `test_of`. The
# build without a switch is tried first: it must pass. Prints "ok NAME: what failed" or "FAIL NAME".
cd "$(dirname "$0")/../.." || exit 1
: "${JOBS:=2}" "${MAKE:=make}"
work=$(mktemp -d "${TMPDIR:-/tmp}/glm-switch-XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
names=("$@")
[ ${#names[@]} -gt 0 ] || mapfile -t names < <(
    sed -n 's/^ \* \(MUTATE_[A-Z0-9_]*\) .*/\1/p' kernels/cpu/mutate.h train/mutate.h)

# All scores of these models are positive, so a dropped group's 0 is never among the best.
test_of() {
    case $1 in
        MUTATE_GROUP_ZERO) echo tests/kernels/test_router ;;
        *) echo tests/train/test_parity ;;
    esac
}
build() { # BUILD-FOLDER SWITCH TEST
    "$MAKE" -j"$JOBS" BUILD="$1" ${2:+EXTRA_CFLAGS=-D$2} "$1/$3" > "$work/log" 2>&1
}
run() { timeout 300 "$1" > "$work/log" 2>&1; }

sound=build/release
for test in tests/train/test_parity tests/kernels/test_router; do
    if ! build $sound '' $test || ! run "$sound/$test"; then
        echo "FAIL $test does not pass without a switch: $(grep -am1 -E 'error|FAIL' "$work/log")"
        exit 1
    fi
done
bad=0
for name in "${names[@]}"; do
    test=$(test_of "$name")
    folder=$work/build
    rm -rf "$folder"
    mkdir -p "$folder/tests"
    cp -a $sound/{kernels,ckpt,convert,train,verify,cli} "$folder/"
    cp -a $sound/tests/{support,train,kernels} "$folder/tests/"
    rm -f "$folder/$test" "$folder"/kernels/cpu.o
    # What the switch is in, or what it reaches through the header.
    for source in $(grep -lE "$name|MUTATED_${name#MUTATE_}" kernels/cpu/*.c train/*.c) \
        $(grep -q "($name)" train/mutate.h && grep -l 'train/mutate.h' train/*.c); do
        rm -f "$folder/${source%.c}".o "$folder/${source%.c}".{f32,f64,bf16}.o
    done
    if ! build "$folder" "$name" "$test"; then
        echo "FAIL $name: does not build: $(grep -am1 error "$work/log")"
        bad=1
    elif run "$folder/$test"; then
        echo "FAIL $name: $test passes with it"
        bad=1
    else
        what=$(sed 's/\x1b\[[0-9;]*m//g' "$work/log" | sed -n 's/.*\[FAIL\] \([^:]*::[^:]*\):.*/\1/p')
        [ -n "$what" ] || bad=1
        echo "ok   $name: $(echo "$what" | tr '\n' ' ')"
    fi
done
exit $bad
