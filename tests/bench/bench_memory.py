#!/usr/bin/env python3
"""Peak memory of each command at 4 threads on 1 GB and 8 GB (--big: 30 GB too).

    python tests/bench/bench_memory.py [--big]

Promised: at most 512 MB, and on the larger model at most 24 MB more than on the smaller."""
import argparse
import shutil

import common
import results

PEAK_MB, GROWTH_MB = 512, 24


def commands(top):
    tail = ["--quiet", "--threads", "4"]
    b = common.BIN
    yield "import", [b / "glm-import", top / "src", top / "ckpt", *tail], None
    yield "import zstd", [b / "glm-import", top / "src", top / "out", "--compress", "zstd", *tail], "out"
    yield "reshard", [b / "glm-reshard", top / "ckpt", top / "out", "--tp", "8", "--ep", "4", *tail], "out"
    yield "export", [b / "glm-export", top / "ckpt", top / "out", *tail], "out"
    yield "convert mxfp8", [b / "glm-convert", top / "ckpt", top / "out", "--dtype", "mxfp8", *tail], "out"
    yield "verify", [b / "glm-verify", "integrity", top / "ckpt", *tail], None
    yield "diff", [b / "glm-verify", "diff", top / "src", top / "ckpt", *tail], None


def peaks(config, need_gb):
    folder = common.scratch(need_gb)
    if folder is None:
        print(f"SKIP {config}: needs {need_gb} GB of free disk")
        return None
    out = {}
    with folder as name:
        top = common.pathlib.Path(name)
        common.toy(config, top / "src")
        for what, words, made in commands(top):
            out[what] = common.Run(words).peak_mb
            print(f"  {config} {what}: {out[what]:.0f} MB", flush=True)
            if made:
                shutil.rmtree(top / made)
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--big", action="store_true")
    a = p.parse_args()
    sizes = [("1 GB", "t3-1g", 6), ("8 GB", "t3-8g", 30)] + ([("30 GB", "t3-30g", 95)] if a.big else [])
    measured = [(label, got) for label, config, gb in sizes if (got := peaks(config, gb))]
    figures = []
    for label, got in measured:
        figures += [common.at_most(f"{what}, peak on {label}", "MB", mb, PEAK_MB)
                    for what, mb in got.items()]
    for label, got in measured[1:]:
        figures += [common.at_most(f"{what}, growth from {measured[0][0]} to {label}", "MB",
                                   mb - measured[0][1][what], GROWTH_MB) for what, mb in got.items()]
    results.show(figures)
    results.write("memory-big" if a.big else "memory",
                  "tests/bench/bench_memory.py" + (" --big" if a.big else ""), figures)


main()
