#!/usr/bin/env python3
"""glm-train as people use it: killed, stopped by signals, started twice, fed with bad input.

A model of 60,000 parameters (fixtures/train/micro.json) on random walks of tokens. Prints "ok NAME" or
"FAIL NAME: why"."""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BIN", ROOT / "build/release/bin"))
FAILED = []
RECIPE = """ARGS:
  train_iters: 24
  global_batch_size: 4
  micro_batch_size: 2
  seq_length: 32
  lr: 2e-3
  optimizer: muon
  dsa_indexer_loss_coeff: 0.01
  dsa_indexer_use_sparse_loss: true
  save_interval: 2
  eval_interval: 6
  eval_iters: 1
  split: "80,20,0"
GLM:
  model: config.json
  data: data.h5
  packing: documents
  run_dir: run
"""


def check(name, good, why=""):
    print("ok " + name if good else f"FAIL {name}: {why}", flush=True)
    if not good:
        FAILED.append(name)


def run(*words, **kw):
    return subprocess.run([str(BIN / words[0]), *map(str, words[1:])], capture_output=True,
                          text=True, timeout=1800, **kw)


def documents(count, vocab, seed):
    rng = random.Random(seed)
    for _ in range(count):
        token = rng.randrange(vocab)
        out = []
        for _ in range(rng.randrange(71)):
            out.append(token)
            token = (3 * token + 1 + rng.randrange(4)) % vocab
        yield out


def dataset(path, docs):
    path.with_suffix(".jsonl").write_text("".join(json.dumps(d) + "\n" for d in docs))
    r = run("glm-data", "build", "--quiet", "--from", "jsonl", path, path.with_suffix(".jsonl"))
    assert r.returncode == 0, r.stderr


def new_folder(base, name):
    folder = base / name
    folder.mkdir()
    shutil.copy(ROOT / "fixtures/train/micro.json", folder / "config.json")
    (folder / "recipe.yaml").write_text(RECIPE)
    dataset(folder / "data.h5", documents(160, 96, 1))
    return folder


def fingerprint(ckpt):
    r = run("glm-inspect", "--json", ckpt)
    return json.loads(r.stdout)["fingerprint"] if r.returncode == 0 else r.stderr


def steps_of(folder, name="run"):
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


TIMES = {"step_seconds", "tokens_per_second", "tflops", "mfu", "memory_bytes", "wall_time"}


def same_metrics(a, b):
    def strip(rows):
        return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]
    return strip(a) == strip(b)


def start(folder, *words):
    return subprocess.Popen([str(BIN / "glm-train"), "--threads", "1", "recipe.yaml", *words],
                            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_step(process, step):
    """Reads what it says until a step is done."""
    for line in process.stderr:
        if line.startswith(f"step {step}/"):
            return True
    return False


def killed_again_and_again(base):
    """kill -9 at random moments, in steps and in saves, until the run gets through."""
    folder = new_folder(base, "killed")
    whole = run("glm-train", "--quiet", "recipe.yaml", "--run", "whole", cwd=folder)
    check("train_to_the_end", whole.returncode == 0 and "trained" in whole.stdout, whole.stderr)
    rng = random.Random(7)
    kills = 0
    for attempt in range(60):
        p = start(folder, "--resume")
        try:
            p.communicate(timeout=rng.uniform(0.05, 1.2) if kills < 8 else 600)
            break
        except subprocess.TimeoutExpired:
            p.kill()
            p.communicate()
            kills += 1
    check("killed_runs_get_to_the_end", p.returncode == 0 and kills > 0, f"{kills} kills")
    a, b = fingerprint(folder / "whole/step-000000024"), fingerprint(folder / "run/step-000000024")
    check("killed_runs_end_with_the_same_bits", a == b and len(a) == 64, f"{a} {b}")
    rows = steps_of(folder)
    check("killed_runs_have_each_step_once", [r["step"] for r in rows] == list(range(1, 25)),
          str([r["step"] for r in rows]))
    check("killed_runs_have_the_same_metrics", same_metrics(rows, steps_of(folder, "whole")))
    left = [p.name for p in (folder / "run").iterdir()
            if not re.fullmatch(r"step-\d{9}|latest|metrics\.jsonl|events\.out\.tfevents.*", p.name)]
    check("killed_runs_leave_nothing_else", left == [], str(left))
    r = run("glm-train", "recipe.yaml", "--eval-only", "run", cwd=folder)
    check("a_runs_folder_names_its_newest_checkpoint", r.returncode == 2
          and "run/step-000000024" in r.stderr, f"{r.returncode}: {r.stderr}")
    return folder


def signals(base, whole):
    for name, number, status in (("TERM", signal.SIGTERM, 0), ("USR1", signal.SIGUSR1, 0),
                                 ("INT", signal.SIGINT, 130)):
        folder = new_folder(base, "signal" + name)
        p = start(folder, "--set", "train_iters=24")
        seen = wait_for_step(p, 5)
        p.send_signal(number)
        out, err = p.communicate(timeout=1800)
        check(f"SIG{name}_status_{status}", seen and p.returncode == status,
              f"{p.returncode}: {err[-300:]}")
        m = re.search(r"stopped at step (\d+) of 24", out)
        check(f"SIG{name}_says_where_it_stopped", m is not None, out)
        step = int(m.group(1)) if m else 0
        check(f"SIG{name}_saved", (folder / f"run/step-{step:09d}").is_dir())
        r = run("glm-train", "--quiet", "recipe.yaml", "--resume", cwd=folder)
        check(f"SIG{name}_goes_on_with_the_same_bits", r.returncode == 0 and fingerprint(
            folder / "run/step-000000024") == fingerprint(whole / "run/step-000000024"), r.stderr)


def nobody_reads(base, whole):
    """A pager that is closed, a tee that dies: the run goes on."""
    folder = new_folder(base, "unread")
    p = start(folder)
    seen = wait_for_step(p, 1)
    p.stderr.close()
    out = p.stdout.read()
    p.stdout.close()
    p.wait(timeout=1800)
    check("a_run_whose_lines_nobody_reads_goes_on", seen and p.returncode == 0 and "trained" in out
          and fingerprint(folder / "run/step-000000024") ==
          fingerprint(whole / "run/step-000000024"), f"{p.returncode}: {out}")


def two_at_once(base):
    folder = new_folder(base, "two")
    p = start(folder, "--set", "train_iters=4000", "--set", "save_interval=0", "--set",
              "eval_interval=0")
    seen = wait_for_step(p, 1)
    r = run("glm-train", "recipe.yaml", "--resume", cwd=folder)
    check("two_runs_in_one_folder_are_refused", seen and r.returncode == 2
          and "one run at a time" in r.stderr, f"{r.returncode}: {r.stderr}")
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=1800)


def bad_input(base):
    folder = new_folder(base, "bad")

    def refused(name, status, words, *options):
        r = run("glm-train", "recipe.yaml", "--run", "x", *options, cwd=folder)
        good = r.returncode == status and all(w in r.stderr for w in words)
        check(name, good, f"status {r.returncode}: {r.stderr}")
        shutil.rmtree(folder / "x", ignore_errors=True)

    docs = list(documents(160, 96, 1))
    docs[40] = [1, 2, 3, 96] + docs[40]
    for d in range(160):  # every sample is read in one epoch
        docs[d] = docs[d] or []
    dataset(folder / "outside.h5", docs)
    refused("token_outside_of_the_vocabulary", 3, ["outside.h5", "document 40", "96"],
            "--set", "GLM.data=outside.h5", "--set", "train_iters=200", "--set", "save_interval=0")
    dataset(folder / "short.h5", [[1, 2, 3]] * 4)
    refused("dataset_shorter_than_a_sequence", 3, ["short.h5", "less than one sample"],
            "--set", "GLM.data=short.h5", "--set", "GLM.packing=stream")
    dataset(folder / "gaps.h5", [d for pair in zip(docs[41:], [[]] * 119) for d in pair])
    r = run("glm-train", "--quiet", "recipe.yaml", "--run", "gaps", "--set", "GLM.data=gaps.h5",
            "--set", "train_iters=3", cwd=folder)
    check("empty_documents_are_legal", r.returncode == 0, r.stderr)
    refused("no_dataset", 3, ["none.h5"], "--set", "GLM.data=none.h5")
    refused("recipe_that_contradicts_itself", 3, ["global_batch_size", "micro_batch_size"],
            "--set", "global_batch_size=5")
    refused("unknown_key", 2, ["lrr"], "--set", "lrr=1")
    refused("topology_that_does_not_divide", 2, ["tp"], "--set", "tensor_model_parallel_size=5")
    refused("a_rate_that_diverges", 1, ["step ", "nothing was saved"], "--set", "lr=1e6",
            "--set", "clip_grad=0", "--set", "optimizer=adam")
    r = run("glm-train", "--quiet", "recipe.yaml", "--run", "mine", "--set", "train_iters=2",
            cwd=folder)
    config = json.loads((folder / "config.json").read_text())
    config["routed_scaling_factor"] = 2.0
    (folder / "config.json").write_text(json.dumps(config))
    r = run("glm-train", "recipe.yaml", "--run", "mine", "--resume", cwd=folder)
    check("checkpoint_of_another_model", r.returncode == 2 and "another model" in r.stderr,
          f"{r.returncode}: {r.stderr}")
    flip = folder / "mine/step-000000002"
    shard = next(flip.glob("shard-*.h5"))
    data = bytearray(shard.read_bytes())
    at = len(data) // 2  # padding between pieces is not read
    while data[at] == 0 or data[at + 1] == 0:
        at += 1
    data[at] ^= 4
    shard.write_bytes(data)
    shutil.copy(ROOT / "fixtures/train/micro.json", folder / "config.json")
    r = run("glm-train", "recipe.yaml", "--run", "mine", "--resume", "--set", "train_iters=2",
            cwd=folder)
    check("damaged_checkpoint", r.returncode == 3 and "shard-" in r.stderr,
          f"{r.returncode}: {r.stderr}")


def full_disk(base):
    folder = new_folder(base, "full")
    disk = folder / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk],
                      capture_output=True).returncode != 0:
        print("SKIP full_disk: cannot mount a tmpfs (not root?)")
        return
    try:
        p = start(folder, "--run", "disk/run", "--set", "save_interval=4", "--set", "GLM.keep_last=1")
        wait_for_step(p, 5)
        fill = open(disk / "fill", "wb")
        try:
            while True:
                fill.write(b"x" * 65536)
                fill.flush()
        except OSError:
            pass
        said = ""
        for line in p.stderr:
            said += line
            if "training goes on" in line:
                break
        os.unlink(disk / "fill")
        try:
            fill.close()
        except OSError:
            pass
        out, err = p.communicate(timeout=1800)
        check("full_disk_is_a_warning", "not saved" in said and "training goes on" in said, said)
        check("full_disk_ends_well", p.returncode == 0, f"{p.returncode}: {err[-400:]}")
        r = run("glm-verify", "integrity", "--quiet", disk / "run/step-000000024")
        check("full_disk_the_last_checkpoint_is_whole", r.returncode == 0, r.stderr)
    finally:
        subprocess.run(["umount", disk])


def main():
    for need in ("glm-train", "glm-data", "glm-inspect", "glm-verify"):
        if not (BIN / need).exists():
            print(f"SKIP train: {need} is not built")
            return 77
    with tempfile.TemporaryDirectory(prefix="glm-train-") as tmp:
        base = pathlib.Path(tmp)
        begin = time.time()
        whole = killed_again_and_again(base)
        signals(base, whole)
        nobody_reads(base, whole)
        two_at_once(base)
        bad_input(base)
        full_disk(base)
        print(f"# {time.time() - begin:.0f} s", flush=True)
    return 1 if FAILED else 0


sys.exit(main())
