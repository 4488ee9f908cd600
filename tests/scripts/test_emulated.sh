#!/bin/bash
# The GPU backend's operations on the CPU (tests/emu): small shapes, each twice with the same bits. A
# line per case. The emulator's own checks come first.
: "${TOOLS:=build/release/tools}"
"$TOOLS/../../emulated/emu_check"
exec "$TOOLS/gpu_ops" --backend emulated --small
