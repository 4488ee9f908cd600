#!/usr/bin/env python3
"""Where the time of an operation goes: Nsight Compute over gpu_time, a table per line.

    kernel_profile.py [--out FILE.md] [KERNEL WORDS]...    on a machine with a GPU and ncu

KERNEL and WORDS choose lines as gpu_time's --kernel and --case do; without any, those of the
operations that miss what the kernel guide asks. A row is a kernel: launches and microseconds of one
run of the operation, and of the longest launch how busy ncu found the multiprocessors' fullest unit
(for products the tensor cores), L1 and shared memory, L2 and DRAM, in percent of their peaks, with the
share of warp slots in use. Clocks are left alone; ncu runs each kernel several times, so the times
are a little longer than gpu_time's."""
import argparse
import csv
import io
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOME = next(p for p in (ROOT / "build/gpu", ROOT / "build/release") if (p / "tools/gpu_time").exists())
RUNS = 3  # of the operation in `gpu_time --repeats 1`: two to warm up
MISSES = [("K2", "gate wgrad, 16", ()), ("K5", "causal", ()), ("K9", "T 16384", ("--tokens", "16384")),
          ("K12", "T 4096", ()), ("K13", "D 6144", ()), ("K15", "dense", ()), ("K19", "16 x", ()),
          ("K21", "64 x", ())]
COLUMNS = {"Compute (SM) Throughput": "SM", "L1/TEX Cache Throughput": "L1", "L2 Cache Throughput": "L2",
           "DRAM Throughput": "DRAM", "Achieved Occupancy": "warps"}


def environment():
    env = dict(os.environ)
    env["LD_LIBRARY_PATH"] = f"{HOME}/deps:" + env.get("LD_LIBRARY_PATH", "")
    return env


def launches(kernel, words, more):
    """[{"name", "us", "SM", ...}] in the order of their start."""
    p = subprocess.run(
        ["ncu", "--clock-control", "none", "--csv", "--page", "details", "--section", "SpeedOfLight",
         "--section", "Occupancy", "--target-processes", "all", HOME / "tools/gpu_time", "--repeats",
         "1", "--kernel", kernel, "--case", words, *more],
        capture_output=True, text=True, env=environment(), check=False)
    text = p.stdout[p.stdout.find('"ID"'):]
    if p.returncode != 0 or not text.startswith('"ID"'):
        sys.exit(f"ncu of {kernel} {words}: status {p.returncode}\n{p.stdout[-1500:]}{p.stderr[-500:]}")
    found = {}
    for row in csv.DictReader(io.StringIO(text)):
        if not (row["ID"] or "").isdigit():
            continue
        one = found.setdefault(int(row["ID"]), {"name": re.sub(r"<.*|\(.*", "", row["Kernel Name"])})
        value, unit = row["Metric Value"].replace(",", ""), row["Metric Unit"]
        if row["Metric Name"] == "Duration":
            one["us"] = float(value) * {"ns": 1e-3, "us": 1, "usecond": 1, "nsecond": 1e-3, "ms": 1e3,
                                        "msecond": 1e3}[unit]
        elif row["Metric Name"] in COLUMNS:
            one[COLUMNS[row["Metric Name"]]] = float(value)
    return [found[i] for i in sorted(found)]


def table(kernel, words, more):
    """Of the operation alone: the first product is gpu_time's ceiling, and what makes inputs is
    launched a number of times that RUNS does not divide."""
    groups = {}
    for l in [l for l in launches(kernel, words, more) if not l["name"].startswith("k_fill")][RUNS:]:
        groups.setdefault(l["name"], []).append(l)
    lines = [f"### {kernel}, {words}", "",
             "| kernel | launches | µs | " + " | ".join(COLUMNS.values()) + " |",
             "|---|" + "---:|" * (2 + len(COLUMNS))]
    for name, all_ in sorted(groups.items(), key=lambda g: -sum(l["us"] for l in g[1])):
        if len(all_) % RUNS != 0:
            continue
        longest = max(all_, key=lambda l: l["us"])
        lines.append(f"| `{name}` | {len(all_) // RUNS} | {sum(l['us'] for l in all_) / RUNS:.1f} | "
                     + " | ".join(f"{longest.get(c, 0):.0f}" for c in COLUMNS.values()) + " |")
    return "\n".join(lines) + "\n"


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--out")
    a.add_argument("lines", nargs="*")
    a = a.parse_args()
    chosen = [(k, w, ()) for k, w in zip(a.lines[::2], a.lines[1::2])] or MISSES
    out = open(a.out, "w", encoding="utf-8") if a.out else sys.stdout
    for line in chosen:
        print(table(*line), file=out, flush=True)


main()
