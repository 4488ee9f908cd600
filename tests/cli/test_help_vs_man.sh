#!/bin/bash
# Each command's --help and its manual page name the same options, with the same values, in the
# same order.
# shellcheck source=tests/cli/scratch.sh
. "$(dirname "$0")/scratch.sh"
bad=0

# `.It Fl -dtype Ar same|bf16` is what --help prints as "--dtype same|bf16".
man_options() {
    sed -nE '/^\.It Fl -/{s/^\.It Fl -/--/;s/ Ar / /;s/\\&//g;p}' "$1"
}
help_options() {
    "$@" --help | sed -nE 's/^  (--[a-z-]+( [^ ]+)?).*/\1/p'
}

synopsis_options() {
    sed -n '/^\.Sh SYNOPSIS/,/^\.Sh DESCRIPTION/p' "$1" | grep -oE 'Fl -[a-z-]+' | sed 's/^Fl -/--/'
}

# A manual whose command has modes has one list for each, opened by `.Ss`; compared page-wide.
for page in "$root"/man/glm-*.1; do
    name=$(basename "$page" .1)
    if [ ! -x "$BIN/$name" ]; then
        echo "SKIP $name: not built"
        continue
    fi
    modes=$("$name" --help | sed -nE "s/^(usage:|      ) $name ([a-z]+)( .*)?\$/\2/p")
    if [ -n "$modes" ]; then
        help=$(for m in $modes; do help_options "$name" "$m"; done)
    else
        help=$(help_options "$name")
    fi
    if difference=$(diff -u --label help <(echo "$help") --label man <(man_options "$page")); then
        echo "ok $name"
    else
        echo "FAIL $name: --help and manual differ"
        printf '    %s\n' "${difference//$'\n'/$'\n'    }"
        bad=1
    fi
    # Every option of a list is in the synopsis, as often as there are modes that have it.
    lacking=$(comm -23 <(man_options "$page" | sed 's/ .*//' | sort) <(synopsis_options "$page" | sort))
    if [ -n "$lacking" ]; then
        echo "FAIL $name: the synopsis lacks ${lacking//$'\n'/ }"
        bad=1
    fi
done
exit $bad
