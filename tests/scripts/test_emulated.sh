#!/bin/bash
# The GPU backend's operations on the CPU (tests/emu): small shapes, once, as the order of its threads
# is always the same. A
# line per case; the emulator's own checks come first.
: "${TOOLS:=build/release/tools}"
"$TOOLS/../../emulated/emu_check"
exec "$TOOLS/gpu_ops" --backend emulated --small --repeats 1
