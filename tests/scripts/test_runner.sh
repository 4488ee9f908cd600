#!/bin/bash
# The runner of the tests (tests/run.sh) on a tree of a few tests whose ends are known: what it
# counts, what it shows, its status, and how many run at the same time.
cd "$(dirname "$0")/../.." || exit 1
runner=$PWD/tests/run.sh
top=$(mktemp -d "${TMPDIR:-/tmp}/glm-runner-XXXXXX") || exit 1
trap 'rm -rf "$top"' EXIT
bad=0
verdict() { # name, condition's words
    local name=$1
    shift
    if "$@"; then
        echo "ok $name"
    else
        echo "FAIL $name"
        sed 's/^/    /' "$top/out"
        bad=1
    fi
}

# A tree: `make` that makes nothing, programs that say what Criterion would say.
new_tree() {
    rm -rf "$top/tree"
    mkdir -p "$top/tree"/{tests/{part,scripts,cli},tools,build/release/tests/part,man}
    cp "$runner" "$top/tree/tests/run.sh"
    printf '#!/bin/sh\nexit 0\n' | tee "$top/tree/tools/"{layers,lint_patches}.sh \
        "$top/tree/tests/cli/"run_{cases,examples}.sh > "$top/tree/make"
    chmod +x "$top/tree"/{make,tools/{layers,lint_patches}.sh,tests/cli/run_{cases,examples}.sh}
}
program() { # name, shell commands
    : > "$top/tree/tests/part/test_$1.c"
    printf '#!/bin/bash\n%s\n' "$2" > "$top/tree/build/release/tests/part/test_$1"
    chmod +x "$top/tree/build/release/tests/part/test_$1"
}
script() { printf '%s\n' "$2" > "$top/tree/tests/scripts/test_$1.sh"; }
run() { # JOBS
    (cd "$top/tree" && MAKE=$PWD/make JOBS=$1 PYTHON=none tests/run.sh --quick) > "$top/out" 2>&1
    echo $? > "$top/status"
}
ends() { # line, status
    [ "$(tail -1 "$top/out")" = "$1" ] && [ "$(cat "$top/status")" = "$2" ]
}
shows() { grep -qF -- "$1" "$top/out"; }
says() { echo "echo '[====] Synthesis: Tested: $1 | Passing: $2 | Failing: $3 | Crashing: $4'"; }

# build, layers, headers, lines, examples pass in every tree; without pages mandoc has none.
new_tree
program good "$(says 7 7 0 0)"
script plain 'true'
script lines 'echo ok one; echo ok two; echo SKIP three: no such device'
script without 'echo there is no such device; exit 77'
run 2
verdict "counts what passed and what was skipped" ends "16 passed, 0 failed, 2 skipped" 0
verdict "says why a test was skipped" shows "SKIP tests/scripts/test_without.sh: there is no such device"

program bad "echo a reason; $(says 5 2 2 1); exit 1"
program silent 'echo it broke; exit 139'
program lies "$(says 3 3 0 0); exit 1"
script lines 'echo ok one; echo "FAIL two: not equal"; exit 1'
script plain 'echo it was wrong; exit 3'
run 3
verdict "counts each that failed" ends "19 passed, 7 failed, 1 skipped" 1
for part in 'FAIL release/tests/part/test_bad (3)' '    a reason' \
    'FAIL release/tests/part/test_silent' '    it broke' 'FAIL release/tests/part/test_lies (1)' \
    'FAIL tests/scripts/test_lines.sh (1)' '    FAIL two: not equal' '    it was wrong'; do
    verdict "shows '$part'" shows "$part"
done

# What is shown of one test stays together, whatever runs beside it.
new_tree
for i in 1 2 3 4 5 6; do
    script $i "for line in a b c d; do echo \"$i \$line\"; sleep 0.02; done; exit 1"
done
run 6
verdict "keeps the lines of a test together" test \
    "$(awk '/^    [1-6] / { n++; if ($1 != last) runs++; last = $1 } END { print n, runs }' "$top/out")" \
    = "24 6"

# Each waits until two are there: with one at a time they would wait until they are stopped.
new_tree
meet="n=\$(mktemp -p $top/tree met-XXXX); for i in \$(seq 1000); do set -- $top/tree/met-*
    [ \$# -ge 2 ] && exit 0; sleep 0.01; done; exit 1"
script a "$meet"
script b "$meet"
run 2
verdict "runs JOBS at the same time" ends "8 passed, 0 failed, 0 skipped" 0
# Two at the same time would find each other's file.
new_tree
for i in 1 2 3 4; do
    script $i "mkdir $top/tree/alone && sleep 0.05 && rmdir $top/tree/alone"
done
run 1
verdict "runs no more than JOBS" ends "10 passed, 0 failed, 0 skipped" 0

new_tree
printf '#!/bin/sh\necho no rule; exit 2\n' > "$top/tree/make"
run 1
verdict "a tree that does not build has failed" ends "4 passed, 2 failed, 0 skipped" 1
exit $bad
