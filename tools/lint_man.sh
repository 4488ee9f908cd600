#!/bin/sh
# lint_man.sh PAGE…: mandoc -Tlint without a word, but for cross references: it looks for those among
# the installed pages, and ours may not be installed yet. They are looked for in man/ here.
dir=$(cd "$(dirname "$0")/../man" && pwd)
bad=0
for page in "$@"; do
    mandoc -Tlint "$page" | grep -v 'referenced manual not found' && bad=1
    # Ours must be there; others are section 1 pages of the system.
    sed -n 's/^\.Xr \(glm-[a-z]*\) \([0-9]\).*/\1.\2/p' "$page" | while read -r name; do
        [ -e "$dir/$name" ] || { echo "$page: there is no man/$name"; exit 1; }
    done || bad=1
done
exit $bad
