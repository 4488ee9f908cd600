#!/bin/bash
# The main job: every step of demo/demo.sh ends well, and its folder holds what it said.
root=$(cd "$(dirname "$0")/../.." && pwd)
: "${BIN:=$root/build/release/bin}"
if [ ! -x "$BIN/glm-verify" ] || [ ! -x "$BIN/glm-inspect" ]; then
    echo "SKIP demo: glm-verify or glm-inspect is not built"
    exit 77
fi
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
if "$root/demo/demo.sh" "$tmp/demo" > "$tmp/log" 2>&1; then
    echo "ok demo"
else
    echo "FAIL demo"
    sed 's/^/    /' "$tmp/log"
    exit 1
fi
# Not by the demo's own word: the original and what came back, byte for byte; nothing unfinished.
if diff -r "$tmp/demo/tiny" "$tmp/demo/same-files" && [ -z "$(find "$tmp/demo" -name '*.partial')" ]; then
    echo "ok demo: the files came back byte for byte"
else
    echo "FAIL demo: the files came back byte for byte"
    exit 1
fi
if grep -q '<svg' "$tmp/demo/curve.svg"; then
    echo "ok demo: there is a picture of the curve"
else
    echo "FAIL demo: there is a picture of the curve"
    exit 1
fi
