"""The file that a benchmark leaves in tests/bench/results/NAME.json:

    name, date (UTC), commit (with "+" if the tree was changed), command,
    machine {cpu, cores, kernel},
    figures [{name, unit, better ("lower" or "higher"), ours, peer, limit, target,
              samples {ours [], peer []}, note}]

ours and peer are the medians of their samples; limit is what is physically or mathematically
possible, target what we promise; each may be null.
"""
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))


def machine():
    with open("/proc/cpuinfo", encoding="ascii") as f:
        cpu = next((l.split(":")[1].strip() for l in f if l.startswith("model name")), "unknown")
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                         capture_output=True, text=True, check=False).stdout.strip() \
        if shutil.which("nvidia-smi") else ""
    found = {"gpu": gpu} if gpu else {}
    return {**found, "cpu": cpu, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release()}


def commit():
    """Of this tree; where it came without its history, what COMMIT says."""
    if "COMMIT" in os.environ:
        return os.environ["COMMIT"]
    def git(*words):
        return subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True,
                              check=False).stdout.strip()
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(exclude)results")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")


def figure(name, unit, better, ours, peer=(), limit=None, target=None, note=None):
    def middle(samples):
        return round(statistics.median(samples), 4) if samples else None
    return {"name": name, "unit": unit, "better": better, "ours": middle(ours),
            "peer": middle(peer), "limit": limit, "target": target, "note": note,
            "samples": {"ours": [round(s, 4) for s in ours], "peer": [round(s, 4) for s in peer]}}


def write(name, command, figures):
    os.makedirs(os.path.join(HERE, "results"), exist_ok=True)
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    with open(os.path.join(HERE, "results", name + ".json"), "w", encoding="utf-8") as f:
        json.dump({"name": name, "date": now, "commit": commit(), "command": command,
                   "machine": machine(), "figures": figures}, f, indent=1)
        f.write("\n")


def show(figures):
    for f in figures:
        rest = ", ".join(f"{k} {f[k]}" for k in ("peer", "limit", "target") if f[k] is not None)
        print(f"{f['name']:34} {f['ours']:9} {f['unit']:8} {rest}")
