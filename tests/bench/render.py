#!/usr/bin/env python3
"""RESULTS.md from the files in tests/bench/results/.

    python3 tests/bench/render.py            writes tests/bench/RESULTS.md
    python3 tests/bench/render.py --check    says whether it is what the files give (exit 1 if not)

Needs nothing but Python.
"""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(HERE, "RESULTS.md")
HEAD = """# Results

Made by `tests/bench/render.py` from the files in `tests/bench/results/`; do not edit. *Ours* and
*peer* are medians of the samples in the file, *limit* is what is physically or mathematically
possible in the same run, *target* what we promise.
"""


def number(v):
    return "" if v is None else f"{v:g}"


def section(r):
    m = r["machine"]
    lines = [f"\n## {r['name']}\n",
             f"{r['date']}, commit {r['commit']}, {m['gpu'] + ', ' if 'gpu' in m else ''}{m['cpu']}, {m['cores']} cores, "
             f"Linux {m['kernel']}. Command: `{r['command']}`\n",
             "| figure | unit | better | ours | peer | limit | target | samples | note |",
             "|---|---|---|---:|---:|---:|---:|---:|---|"]
    for f in r["figures"]:
        cells = [f["name"], f["unit"], f["better"], number(f["ours"]), number(f["peer"]),
                 number(f["limit"]), number(f["target"]), str(len(f["samples"]["ours"])),
                 f["note"] or ""]
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return "\n".join(lines) + "\n"


def page():
    folder = os.path.join(HERE, "results")
    names = sorted(n for n in os.listdir(folder) if n.endswith(".json")) \
        if os.path.isdir(folder) else []
    text = HEAD
    for name in names:
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            text += section(json.load(f))
    return text


def main():
    wanted = page()
    if sys.argv[1:] == ["--check"]:
        try:
            with open(PAGE, encoding="utf-8") as f:
                there = f.read()
        except FileNotFoundError:
            there = None
        if there != wanted:
            print("tests/bench/RESULTS.md is not what tests/bench/results/ gives: "
                  "run tests/bench/render.py")
            return 1
        return 0
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(wanted)
    return 0


sys.exit(main())
