#!/bin/bash
# run.sh [--big] [NAME…]: runs benchmarks, one after the other, and writes RESULTS.md anew.
#
# A benchmark is tests/bench/bench_NAME.py; it prints its figures and leaves results/NAME.json.
# --big: those of tests/bench/big_NAME.py instead, which want 70 GB of free disk.
# Nothing else should run on the machine meanwhile.
cd "$(dirname "$0")/../.." || exit 1
: "${PYTHON:=.venv/bin/python}"
kind=bench
[ "${1:-}" = --big ] && { kind=big; shift; }
if [ $# -gt 0 ]; then
    set -- "${@/#/tests/bench/${kind}_}"
    set -- "${@/%/.py}"
else
    set -- "tests/bench/${kind}"_*.py
fi

bad=0
for program; do
    if [ ! -e "$program" ]; then
        echo "bench: there is no $program" >&2
        bad=1
        continue
    fi
    echo "== $program"
    "$PYTHON" "$program" || { echo "bench: $program failed" >&2; bad=1; }
done
"$PYTHON" tests/bench/render.py || bad=1
exit $bad
