#!/bin/bash
# coverage.sh [NAME...]: line coverage of each fuzzed parser by its committed corpus alone.
#
# tests/fuzz/fuzz_NAME.c says in a line "Covers: FILE..." which sources it is about. Prints a line
# per file; fails if a fuzzer's files together are below 90 %.
cd "$(dirname "$0")/../.." || exit 1
: "${FUZZ_CC:=clang}" "${LEAST:=90}"
version=$("$FUZZ_CC" -dumpversion 2> /dev/null | cut -d. -f1)
profdata=$(command -v llvm-profdata || command -v "llvm-profdata-$version")
cov=$(command -v llvm-cov || command -v "llvm-cov-$version")
if [ -z "$version" ] || [ -z "$profdata" ] || [ -z "$cov" ]; then
    echo "SKIP fuzz coverage: clang or llvm-profdata and llvm-cov are not installed"
    exit 0
fi
work=build/fuzz/coverage
mkdir -p "$work"
read -r -a packages <<< "$(pkg-config --cflags --libs jansson libzstd libcrypto libcurl hdf5 yaml-0.1)"
names=("$@")
[ ${#names[@]} -gt 0 ] || for f in tests/fuzz/fuzz_*.c; do
    f=${f##*/fuzz_}
    names+=("${f%.c}")
done
status=0
for name in "${names[@]}"; do
    read -r -a files <<< "$(sed -n 's/^.*Covers: *//p' "tests/fuzz/fuzz_$name.c")"
    program=$work/$name
    rm -f "$program".profraw
    # Only the parser is measured; what it stands on comes from the library built for fuzzing,
    # behind it, so that nothing is linked twice.
    if ! "$FUZZ_CC" -std=c11 -D_GNU_SOURCE -O0 -g -w -pthread -I. -fsanitize=fuzzer,address,undefined \
        -fprofile-instr-generate -fcoverage-mapping "tests/fuzz/fuzz_$name.c" "${files[@]}" \
        build/fuzz/libglm.a "${packages[@]}" -lm -o "$program" > "$program.log" 2>&1; then
        echo "FAIL fuzz coverage $name: see $program.log"
        status=1
        continue
    fi
    LLVM_PROFILE_FILE="$program.profraw" "$program" -runs=0 -rss_limit_mb=1024 \
        "tests/fuzz/corpus/$name" >> "$program.log" 2>&1 || status=1
    "$profdata" merge -sparse "$program.profraw" -o "$program.profdata" || status=1
    "$cov" report "$program" -instr-profile="$program.profdata" "${files[@]}" |
        awk -v name="$name" -v least="$LEAST" '
            { sub(/^.*\//, "", $1) }
            NF >= 10 && ($1 ~ /\.c$/ || $1 == "TOTAL") {
                printf "%-4s fuzz coverage %s: %s %s of %s lines\n",
                    ($1 == "TOTAL" && $10 + 0 < least ? "FAIL" : "ok"), name, $1, $10, $8
                if ($1 == "TOTAL") { seen = 1; low = $10 + 0 < least }
            }
            END { exit low || !seen }' || status=1
done
exit $status
