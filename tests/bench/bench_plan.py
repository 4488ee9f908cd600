#!/usr/bin/env python3
"""The full model without its disk: plans over a header-only GLM-5.2 (59,585 tensors, 282 files).

    python tests/bench/bench_plan.py [--rounds 5]

Promised: an import for TP 1 and for TP 8, PP 13, EP 32 is planned in 5 s and 512 MB."""
import argparse
import json

import common
import results

TOPOLOGIES = {"TP1": [], "TP8 PP13 EP32": ["--tp", "8", "--pp", "13", "--ep", "32"]}


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
    results.show(figures)
    results.write("plan", f"tests/bench/bench_plan.py --rounds {a.rounds}", figures)


main()
