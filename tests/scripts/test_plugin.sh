#!/bin/bash
# Compressed chunks in stock programs: h5dump, the system's h5py and the one of the tests' Python
# environment read through our filter plugin what packer_pack stored; where hdf5plugin is there,
# its zstd filter reads it too.
plugin=$(cd "$TOOLS/../plugin" && pwd) || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
file=$work/packed.h5
HDF5_PLUGIN_PATH=$plugin "$TOOLS/packedfile" "$file" || exit 1

cat > "$work/check.py" << 'PY'
import sys
import numpy as np
if sys.argv[2:]:
    import hdf5plugin  # registers its own filters
import h5py

def index(n):
    return np.arange(n, dtype=np.uint64)

with h5py.File(sys.argv[1], "r") as f:
    i = index(150000)
    bits = ((0x3C00 + i * 40503 % 384) | (i & 1) << 15).astype(np.uint32) << 16
    assert (f["bf16"][()].astype(np.float32).ravel() == bits.view(np.float32)).all()
    z = (index(4096) + 1) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    assert (f["noise"][()].ravel() == (z ^ z >> np.uint64(27)).astype(np.uint16)).all()
    i = index(10000)
    assert (f["codes"][()].ravel() == i * i // 7 % 23).all()
    assert (f["f32"][()].ravel() == 1000000 + index(4200)).all()
    assert not f["zeros"][()].any() and f["zeros"].shape == (64, 64)
PY

python_reads() { # name, interpreter, words
    local name=$1 python=$2
    shift 2
    if ! "$python" -c 'import h5py, numpy' 2> "$work/why"; then
        echo "SKIP $name: no h5py"
    elif "$python" "$work/check.py" "$file" "$@"; then
        echo "ok $name"
    else
        echo "FAIL $name"
    fi
}

export HDF5_PLUGIN_PATH=$plugin
if ! command -v h5dump > /dev/null; then
    echo "SKIP h5dump: not installed"
elif h5dump -d /f32 -s 6,598 -c 1,2 "$file" | grep -q '(6,598): 1004198, 1004199' &&
    h5dump -d /bf16 -s 0,0 -c 1,2 "$file" | grep -q '(0,0): 0.0078125, -0.0'; then
    echo "ok h5dump"
else
    echo "FAIL h5dump"
fi
python_reads "the system's h5py" /usr/bin/python3
if [ -n "$PYTHON" ]; then
    python_reads "h5py of the environment" "$PYTHON"
    if "$PYTHON" -c 'import hdf5plugin' 2> "$work/why"; then
        HDF5_PLUGIN_PATH=$work python_reads "hdf5plugin's own zstd" "$PYTHON" hdf5plugin
    else
        echo "SKIP hdf5plugin's own zstd: not installed"
    fi
fi
# Without a plugin the same file must not be readable, or the lines above show nothing.
if HDF5_PLUGIN_PATH=$work h5dump -d /f32 "$file" > "$work/out" 2>&1; then
    echo "FAIL control without the plugin"
else
    echo "ok control without the plugin"
fi
