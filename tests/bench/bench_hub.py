#!/usr/bin/env python3
"""Import from a hub on loopback beside what bounds it and beside the hub's own client.

    python tests/bench/bench_hub.py [--rounds 9] [--config t3-4g] [--connections 4]
                                       [--name hub]

The hub is tests/hub/server.py, which sends files out of the page cache by sendfile. In each round, one
after the other: curl of all files to /dev/null, in one process; dd of the same bytes from the page
cache to the disk (oflag=direct conv=fsync) and glm-import, the one or the other first in turn;
huggingface_hub's snapshot_download, which writes the files and compares no digest. The disk rests
before each. The limit of a round is the smallest of curl, dd and cores x openssl SHA-256. Wants about
three times the model's size of free disk.

The hub shares the processors, and each byte is in two digests: on two cores that, and not the disk, may
bound ours, as the note on its CPU says. The machine's kind is part of the result: --name keeps one
file for each."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import time

import common
import results

PEER = """
import sys
from huggingface_hub import snapshot_download
snapshot_download("test/model", local_dir=sys.argv[1], max_workers=int(sys.argv[2]))
"""


class Server:
    def __init__(self, folder):
        self.process = subprocess.Popen(
            [sys.executable, common.ROOT / "tests/hub/server.py", folder],
            stdout=subprocess.PIPE, text=True)
        self.url = json.loads(self.process.stdout.readline())["hub"]

    def cpu(self):
        """Seconds of processor time so far."""
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as f:
            user, system = f.read().rsplit(")", 1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def has_peer():
    return subprocess.run([sys.executable, "-c", "import huggingface_hub"],
                          capture_output=True, check=False).returncode == 0


def curl(url, files):
    words = ["curl", "-sSfL"]
    for f in files:
        words += ["-o", "/dev/null", f"{url}/test/model/resolve/main/{f.name}"]
    return common.Run(words)


def dd(files, top):
    """The device as ours sees it: the bytes come from memory and go to the disk."""
    seconds = cpu = 0.0
    for i, f in enumerate(files):
        r = common.Run(["dd", f"if={f}", f"of={top}/limit-{i}", "bs=8M", "oflag=direct",
                        "conv=fsync"])
        seconds += r.seconds
        cpu += r.cpu
    for i in range(len(files)):
        (top / f"limit-{i}").unlink()
    return seconds, cpu


def rest():
    """What was written and deleted before is written back and discarded, and the disk idle."""
    os.sync()
    time.sleep(3)


def warm(files):
    """Everything to be sent lies in the page cache, or the disk would be measured twice."""
    for f in files:
        with open(f, "rb", buffering=0) as data:
            while data.read(1 << 24):
                pass


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--config", default="t3-4g")
    p.add_argument("--connections", default="4")
    p.add_argument("--name", default="hub", help="of the file of results")
    a = p.parse_args()
    folder = common.scratch({"t3-1g": 5, "t3-4g": 14, "t3-8g": 28}.get(a.config, 14))
    if folder is None:
        raise SystemExit("bench_hub: not enough free disk")
    peer = has_peer()
    with folder as name:
        top = common.pathlib.Path(name)
        files = common.toy(a.config, top / "src")
        size, cores = common.size_of(files), len(os.sched_getaffinity(0))
        ours, limit, theirs, cpu, least, hubs, peak, parts = [], [], [], [], [], [], [], []
        with Server(top / "src") as hub:
            os.environ.update(HF_ENDPOINT=hub.url, HF_HOME=str(top / "home"),
                              HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1",
                              HF_HUB_DISABLE_PROGRESS_BARS="1")
            for n in range(a.rounds):
                warm(files)
                before = hub.cpu()
                fetch = curl(hub.url, files)
                hubs.append((hub.cpu() - before) / size * 1e9)
                rate = common.sha256_rate()
                bounds = {"curl": fetch.seconds, "SHA-256": size / (cores * rate)}
                for part in ("dd", "ours") if n % 2 == 0 else ("ours", "dd"):
                    rest()
                    if part == "dd":
                        bounds["dd"], write_cpu = dd(files, top)
                        continue
                    r = common.Run([common.BIN / "glm-import", "--quiet", "--connections",
                                    a.connections, "hf://test/model", top / "out"])
                    shutil.rmtree(top / "out")
                ours.append(r.seconds)
                cpu.append(r.cpu / size * 1e9)
                least.append((fetch.cpu + write_cpu + size / rate) / size * 1e9)
                peak.append(r.peak_mb)
                limit.append(max(bounds.values()))
                parts.append(max(bounds, key=bounds.get))
                if peer:
                    rest()
                    r = common.Run([sys.executable, "-c", PEER, top / "peer", a.connections])
                    theirs.append(size / r.seconds / 1e9)
                    shutil.rmtree(top / "peer")
                print(f"  {n + 1}/{a.rounds}: {size / ours[-1] / 1e9:.2f} GB/s, limit "
                      f"{size / limit[-1] / 1e9:.2f} ({', '.join(f'{k} {size / v / 1e9:.2f}' for k, v in bounds.items())})"
                      + (f", peer {theirs[-1]:.2f}" if theirs else ""), flush=True)
    bound = max(set(parts), key=parts.count)
    f = common.speed_figure("import from a hub", size, ours, limit, 0.90,
                            f"limit: the least of curl to /dev/null, dd to the disk and cores x "
                            f"openssl SHA-256, here mostly {bound}; peer: snapshot_download, which "
                            "compares no digest")
    f["peer"] = round(results.statistics.median(theirs), 4) if theirs else None
    f["samples"]["peer"] = [round(x, 4) for x in theirs]
    need, sends = results.statistics.median(least), results.statistics.median(hubs)
    figures = [f, results.figure("import from a hub, CPU", "CPU s/GB", "lower", cpu,
                                 limit=round(need, 4),
                                 note="limit: curl, dd and one SHA-256 pass; ours makes two. With the "
                                      f"hub's own {sends:.2f} on the same {cores} processors that "
                                      f"limit is {cores / (need + sends):.2f} GB/s"),
               common.at_most("import from a hub, peak", "MB", peak, 512)]
    results.show(figures)
    results.write(a.name, f"tests/bench/bench_hub.py --rounds {a.rounds} --config {a.config} "
                          f"--connections {a.connections}"
                          + (f" --name {a.name}" if a.name != "hub" else ""), figures)


main()
