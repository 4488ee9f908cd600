#!/bin/bash
# The GPU backend's operations on the CPU (tests/emu): small shapes, each twice with the same bits. A
# line per case.
: "${TOOLS:=build/release/tools}"
exec "$TOOLS/gpu_ops" --backend emulated --small
