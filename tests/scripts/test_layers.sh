#!/bin/bash
# tools/layers.sh finds an include that points up, one that goes round a door, and nothing else.
root=$(cd "$(dirname "$0")/../.." && pwd)
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp"/{tools,kernels/base,ckpt,convert,cli}
cp "$root/tools/layers.sh" "$tmp/tools"
echo '#include "kernels/base/error.h"' > "$tmp/ckpt/rect.c"
echo '#include "ckpt/ckpt.h"' > "$tmp/convert/import.c"
printf '#include <stdio.h>\n#include "convert/convert.h"\n#include "cli/opt.h"\n' > "$tmp/cli/glm-x.c"
bad=0

expect() { # name, wanted status, wanted line or nothing
    out=$("$tmp/tools/layers.sh" 2>&1)
    status=$?
    if [ $status -eq "$2" ] && [ "$out" = "$3" ]; then
        echo "ok $1"
    else
        echo "FAIL $1: status $status, '$out'"
        bad=1
    fi
}

expect "a tree that points down passes" 0 ""
echo '#include "convert/convert.h"' > "$tmp/ckpt/up.c"
expect "an include that points up is found" 1 \
    'layers: ckpt/up.c:1: ckpt may not include "convert/convert.h"'
rm "$tmp/ckpt/up.c"
printf '\n#  include "ckpt/rect.h"\n' > "$tmp/convert/round.h"
expect "an include that goes round the door is found" 1 \
    'layers: convert/round.h:2: convert may not include "ckpt/rect.h"'
rm "$tmp/convert/round.h"
echo '#include "ckpt/ckpt.h"' > "$tmp/kernels/base/deep.h"
expect "kernels/base includes nothing above itself" 1 \
    'layers: kernels/base/deep.h:1: kernels/base may not include "ckpt/ckpt.h"'
exit $bad
