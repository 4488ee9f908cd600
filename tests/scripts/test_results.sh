#!/bin/bash
# Figures come from results files: RESULTS.md is what they give, and a figure in README.md that is
# marked with its source, `<!-- results: NAME: figure -->` at the end of its line, stands in the line
# as RESULTS.md has it. A file names the commit that was measured, with "+" if the tree was another.
cd "$(dirname "$0")/../.." || exit 1
bad=0
if out=$(python3 tests/bench/render.py --check); then
    echo "ok RESULTS.md is generated"
else
    echo "FAIL RESULTS.md is generated: $out"
    bad=1
fi

# "NAME: figure" to the value of ours.
value() {
    awk -F' [|] ' -v file="${1%%: *}" -v figure="${1#*: }" '
        /^## / { on = ($0 == "## " file) }
        on && $1 == "| " figure { print $4 }' tests/bench/RESULTS.md
}
while IFS= read -r line; do
    source=$(echo "$line" | sed -E 's/.*<!-- results: (.*) -->.*/\1/')
    wanted=$(value "$source")
    if [ -n "$wanted" ] && echo "$line" | grep -qwF -- "$wanted"; then
        echo "ok README: $source"
    else
        echo "FAIL README: $source is '$wanted' in RESULTS.md, not so in: $line"
        bad=1
    fi
done < <(grep -F '<!-- results: ' README.md)

# A figure of speed without its source would escape the check.
if grep -nE '[0-9](\.[0-9]+)? (GB|MB)/s' README.md | grep -vF '<!-- results: '; then
    echo "FAIL README: a speed without its results file"
    bad=1
fi

# What a results file would name in a tree of one commit: as it is, with a result, with another change.
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
names() { python3 -B -c 'import sys; sys.path.insert(0, sys.argv[1]); import results; print(results.commit())' "$tmp/tests/bench"; }
mkdir -p "$tmp/tests/bench/results"
cp tests/bench/results.py "$tmp/tests/bench"
echo 1 | tee "$tmp/code" > "$tmp/tests/bench/results/a.json"
# A tree of its own, whoever started this: git's hooks set GIT_DIR, and a user may sign commits.
# shellcheck disable=SC2046 # words
unset $(git rev-parse --local-env-vars) COMMIT
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
(cd "$tmp" && git init -q . && git add . &&
    git -c user.name=test -c user.email=test@localhost commit -qm one) || exit 1
head=$(git -C "$tmp" rev-parse --short=12 HEAD)
clean=$(names)
echo 2 > "$tmp/tests/bench/results/a.json"
measured=$(names)
echo 2 > "$tmp/code"
changed=$(names)
if [ "$clean $measured $changed" = "$head $head $head+" ]; then
    echo "ok a result names its commit, and that the tree was changed"
else
    echo "FAIL a result names its commit: '$clean', '$measured', '$changed', expected $head, the same, $head+"
    bad=1
fi
exit $bad
