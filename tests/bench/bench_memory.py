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
    """(name, words, folder to remove afterwards). Two copies of the model at most lie on the disk."""
    tail = ["--quiet", "--threads", "4"]
    b, src, ckpt, out = common.BIN, top / "src", top / "ckpt", top / "out"
    yield "import zstd", [b / "glm-import", src, out, "--compress", "zstd", *tail], out
    yield "import", [b / "glm-import", src, ckpt, *tail], None
    yield "diff", [b / "glm-verify", "diff", src, ckpt, *tail], src
    yield "verify", [b / "glm-verify", "integrity", ckpt, *tail], None
    yield "reshard", [b / "glm-reshard", ckpt, out, "--tp", "8", "--ep", "4", *tail], out
    yield "export", [b / "glm-export", ckpt, out, *tail], out
    yield "convert mxfp8", [b / "glm-convert", ckpt, out, "--dtype", "mxfp8", *tail], out


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
                shutil.rmtree(made)
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--big", action="store_true")
    a = p.parse_args()
    sizes = [("1 GB", "t3-1g", 6), ("8 GB", "t3-8g", 30)] + ([("30 GB", "t3-30g", 70)] if a.big else [])
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
