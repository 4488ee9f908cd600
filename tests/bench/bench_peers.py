#!/usr/bin/env python3
"""The same import by Python: safetensors with torch.distributed.checkpoint, and with h5py.

    python tests/bench/bench_peers.py [--config t3-4g] [--rounds 3]

Seconds and peak memory, alternating with ours in one run, caches dropped before each. Ours hashes
every byte and fsyncs; the peers hash nothing. Peers that cannot be imported are left out."""
import argparse
import importlib.util
import shutil
import sys

import common
import results


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--config", default="t3-4g")
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    has = lambda m: importlib.util.find_spec(m) is not None
    peers = [k for k, m in (("dcp", "torch"), ("h5py", "h5py"))
             if has(m) and has("safetensors") and has("torch")]
    with common.scratch(18) as name:
        top = common.pathlib.Path(name)
        files = common.toy(a.config, top / "src")
        size = common.size_of(files)
        ways = {"ours": [common.BIN / "glm-import", top / "src", top / "out", "--quiet", "--threads", "4"]}
        for peer in peers:
            ways[peer] = [sys.executable, common.ROOT / "tests/bench/peer_import.py", peer,
                          top / "src", top / "out"]
        runs = {way: [] for way in ways}
        for _ in range(a.rounds):
            for way, words in ways.items():
                common.drop_caches(top)
                runs[way].append(common.Run(words))
                shutil.rmtree(top / "out")
                print(f"  {way}: {size / runs[way][-1].seconds / 1e9:.2f} GB/s, "
                      f"{runs[way][-1].peak_mb:.0f} MB", flush=True)
    rate = lambda way: [size / r.seconds / 1e9 for r in runs[way]]
    peak = lambda way: [r.peak_mb for r in runs[way]]
    figures = []
    for peer in peers:
        figures += [results.figure(f"import beside {peer}", "GB/s", "higher", rate("ours"), rate(peer)),
                    results.figure(f"import beside {peer}, peak", "MB", "lower", peak("ours"), peak(peer))]
    results.show(figures)
    results.write("peers", f"tests/bench/bench_peers.py --config {a.config} --rounds {a.rounds}", figures)


main()
