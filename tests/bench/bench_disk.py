#!/usr/bin/env python3
"""Import, export, reshard and verify beside the limit of the disk (common.py says how).

    python tests/bench/bench_disk.py [--pairs 9] [--config t3-4g] [--threads N] [--only import,...]

Wants about four times the model's size of free disk, and root to drop the caches."""
import argparse
import os
import shutil

import common
import results

COPIES = {"import": 0.90, "export": 0.90, "reshard": 0.90}
RESHARD = ["--tp", "8", "--pp", "2", "--ep", "4"]


def words_of(op, top, threads):
    tail = ["--quiet", "--threads", threads]
    return {"import": [common.BIN / "glm-import", top / "src", top / "out", *tail],
            "export": [common.BIN / "glm-export", top / "ckpt", top / "out", *tail],
            "reshard": [common.BIN / "glm-reshard", top / "ckpt", top / "out", *RESHARD, *tail],
            }[op]


def copy_op(op, top, files, a):
    size, ours, limit, cpu, dd_cpu = common.size_of(files), [], [], [], []
    for n in range(a.pairs):
        common.drop_caches(top)
        seconds, c = common.copy_limit(files, top)
        limit.append(seconds)
        dd_cpu.append(c)
        common.drop_caches(top)
        r = common.Run(words_of(op, top, a.threads))
        ours.append(r.seconds)
        cpu.append(r.cpu)
        shutil.rmtree(top / "out")
        print(f"  {op} {n + 1}/{a.pairs}: {size / r.seconds / 1e9:.2f} GB/s, "
              f"limit {size / seconds / 1e9:.2f}", flush=True)
    return [common.speed_figure(op, size, ours, limit, COPIES[op]),
            common.cpu_figure(f"{op} CPU", size, cpu, dd_cpu, common.openssl_cpu_per_gb(files[0]))]


def verify_op(top, files, a):
    size, ours, limit, cores = common.size_of(files), [], [], len(os.sched_getaffinity(0))
    for n in range(a.pairs):
        common.drop_caches(top)
        seconds, _ = common.read_limit(files)
        hashing = size / (cores * common.sha256_rate())
        limit.append(max(seconds, hashing))
        common.drop_caches(top)
        r = common.Run([common.BIN / "glm-verify", "integrity", top / "ckpt", "--quiet",
                        "--threads", a.threads])
        ours.append(r.seconds)
        print(f"  verify {n + 1}/{a.pairs}: {size / r.seconds / 1e9:.2f} GB/s, limit "
              f"{size / limit[-1] / 1e9:.2f}", flush=True)
    return [common.speed_figure("verify", size, ours, limit, 0.85,
                                "limit: the slower of reading and cores x openssl SHA-256")]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--pairs", type=int, default=9)
    p.add_argument("--config", default="t3-4g")
    p.add_argument("--threads", default="4")
    p.add_argument("--only", default="import,export,reshard,verify")
    a = p.parse_args()
    folder = common.scratch({"t3-1g": 6, "t3-4g": 18, "t3-8g": 36}.get(a.config, 18))
    if folder is None:
        raise SystemExit("bench_disk: not enough free disk")
    figures = []
    with folder as name:
        top = common.pathlib.Path(name)
        src = common.toy(a.config, top / "src")
        common.Run([common.BIN / "glm-import", top / "src", top / "ckpt", "--quiet"])
        shards = common.files_of(top / "ckpt", "shard-*")
        for op in a.only.split(","):
            if op == "verify":
                figures += verify_op(top, shards, a)
            else:
                figures += copy_op(op, top, src if op == "import" else shards, a)
    results.show(figures)
    results.write("disk", f"tests/bench/bench_disk.py --pairs {a.pairs} --config {a.config} "
                          f"--threads {a.threads}", figures)


main()
