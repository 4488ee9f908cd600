#!/usr/bin/env python3
"""GEMM in F32 beside OpenBLAS, in turn in one process.

    make build/release/tools/bench_gemm
    python tests/bench/bench_gemm.py [--threads 2] [--rounds 11] [--openblas LIBRARY]

Shapes: 1024^3, the linear layers of GLM-5.2 and those of the tiny model of the tests. The target
is 0.90 of OpenBLAS (Debian: libopenblas0-pthread). Ours is BLIS with its path for small matrices
off, because a row's bits must not depend on the other rows.
"""
import argparse
import json
import os
import subprocess
import sys

import results

ROOT = os.path.dirname(os.path.dirname(results.HERE))
TOOLS = os.environ.get("TOOLS", os.path.join(ROOT, "build", "release", "tools"))
SHARE = 0.90


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--rounds", type=int, default=11)
    a.add_argument("--openblas", default="libopenblas.so.0")
    o = a.parse_args()
    out = subprocess.run([os.path.join(TOOLS, "bench_gemm"), str(o.threads), str(o.rounds),
                          o.openblas], check=True, capture_output=True, text=True).stdout
    shapes = {}
    for line in out.splitlines():
        r = json.loads(line)
        shapes.setdefault((r["shape"], r["size"]), []).append(r)
    figures = []
    for (name, size), rows in shapes.items():
        peer = [r["peer"] for r in rows if r["peer"] is not None]
        f = results.figure(f"gemm {name}", "GFLOP/s", "higher", [r["ours"] for r in rows], peer,
                           note=f"{size}, {o.threads} threads; peer: OpenBLAS")
        if peer:
            f["target"] = round(SHARE * f["peer"], 4)
        figures.append(f)
    results.show(figures)
    results.write("gemm", f"tests/bench/bench_gemm.py --threads {o.threads}", figures)
    slow = [f["name"] for f in figures if f["target"] is not None and f["ours"] < f["target"]]
    if slow:
        print("below the target: " + ", ".join(slow))
    return 0


if __name__ == "__main__":
    sys.exit(main())
