#!/usr/bin/env python3
"""The full model without its disk: plans over a header-only GLM-5.2 (59,585 tensors, 282 files).

    python tests/bench/bench_plan.py [--rounds 5]

Promised: an import for TP 1 and for TP 8, PP 13, EP 32, and a reshard from the one to the other, are
planned in 5 s and 512 MB; an index of that size is listed in 2 s. The checkpoint that is resharded
and listed is whole but for its data (tools/fullindex)."""
import argparse
import json

import common
import results

TOPOLOGIES = {"TP1": [], "TP8 PP13 EP32": ["--tp", "8", "--pp", "13", "--ep", "32"]}


def timed(figures, label, words, rounds, seconds, note=None):
    runs = [common.Run(words) for _ in range(rounds)]
    figures.append(common.at_most(label, "s", [r.seconds for r in runs], seconds, note))
    figures.append(common.at_most(f"{label}, peak", "MB", [r.peak_mb for r in runs], 512))


def whole_index(figures, top, rounds):
    for name, word in (("tp1", "tp1"), ("tp8", "tp8,pp13,ep32")):
        common.Run([common.TOOLS / "fullindex", top / name, "glm-5.2", word, "shards"])
    timed(figures, "plan of a reshard, TP1 to TP8 PP13 EP32",
          [common.BIN / "glm-reshard", top / "tp1", top / "out", "--dry-run", "--json",
           *TOPOLOGIES["TP8 PP13 EP32"]], rounds, 5)
    timed(figures, "listing an index, TP8 PP13 EP32",
          [common.BIN / "glm-inspect", top / "tp8", "--tree"], rounds, 2)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=5)
    a = p.parse_args()
    figures = []
    with common.scratch(1) as name:
        top = common.pathlib.Path(name)
        common.Run([common.TOOLS / "toy", "--config", common.CONFIGS / "glm-5.2.json", "--out",
                    top / "src", "--files", "282", "--sparse"])
        for label, words in TOPOLOGIES.items():
            runs = [common.Run([common.BIN / "glm-import", top / "src", top / "out", "--dry-run",
                                "--json", *words]) for _ in range(a.rounds)]
            tensors = json.loads(runs[0].out).get("hf_tensors")
            figures.append(common.at_most(f"plan of an import, {label}", "s",
                                          [r.seconds for r in runs], 5,
                                          f"{tensors} Hugging Face tensors"))
            figures.append(common.at_most(f"plan of an import, {label}, peak", "MB",
                                          [r.peak_mb for r in runs], 512))
        whole_index(figures, top, a.rounds)
    results.show(figures)
    results.write("plan", f"tests/bench/bench_plan.py --rounds {a.rounds}", figures)


main()
