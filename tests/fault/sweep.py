"""Faults at every change of files: import, reshard, export and replacement on a 4 MB toy.

For each command, each mode of tests/fault/fault.c and each k: a fresh folder, the command with the
fault at its k-th change, then

    the target is absent, or equal byte for byte to that of an undisturbed run
        (with --replace: equal to the old or to the new one, never absent)
    the status is 0 only if the target is there, else 4 (or the signal)
    the same command again ends 0 and its target equals the undisturbed one; no .partial stays

Then each fsync is taken away in turn (FAULT_SKIP_SYNC); some k must then break a rule above, or
lose progress that was reported durable. A sweep that never fails proves nothing.

Commands run inside the folder with relative paths, so that provenance does not differ."""
import concurrent.futures
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BIN", ROOT / "build/release/bin"))
TOOLS = pathlib.Path(os.environ.get("TOOLS", ROOT / "build/release/tools"))
SHIM = TOOLS.parent / "libfault.so"
JOBS = int(os.environ.get("JOBS", "2"))
LIMIT_S = 600  # of a command that takes a tenth of a second: a loaded machine is slow, a dead lock has no end
MODES = ["kill", "tear", "short", "enospc", "eio", "edquot", "power", "power data", "power names"]


def tree(folder):
    """{path: digest}; None if there is no such folder."""
    if not folder.is_dir():
        return None
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in sorted(folder.rglob("*")) if p.is_file()}


def threads(pid):
    """What the threads of a process that does not end do: state, what the kernel waits for, the
    processor's time in hundredths of a second."""
    seen = []
    for task in sorted(pathlib.Path(f"/proc/{pid}/task").glob("*")):
        try:
            stat = (task / "stat").read_text().rsplit(")", 1)[1].split()
            seen.append(f"{stat[0]} {(task / 'wchan').read_text()} {int(stat[11]) + int(stat[12])}")
        except OSError:
            pass
    return seen


class Op:
    """A command on a prepared folder."""

    def __init__(self, top, name, words, target, prepare=None, syncs=(), beside=()):
        self.top, self.name, self.words, self.target = top, name, words, target
        self.prepare, self.syncs = prepare, syncs
        self.beside = beside  # (name, bytes) of files that lie there before
        self.old = None      # the target before the command, if any
        self.new = None      # after an undisturbed run
        self.calls = []      # its changes, in order

    def folder(self):
        root = pathlib.Path(tempfile.mkdtemp(dir=self.top, prefix=f"{self.name}-")) / "root"
        root.mkdir()
        if self.prepare:
            shutil.copytree(self.prepare, root / self.target)
        for name, data in self.beside:
            (root / name).write_bytes(data)
        return root

    def run(self, root, log=None, **fault):
        env = dict(os.environ)
        # Without a fault the shim only counts, and spares the disk the fsyncs.
        env.update(LD_PRELOAD=str(SHIM), FAULT_ROOT=str(root))
        env.update({f"FAULT_{k.upper()}": str(v) for k, v in fault.items()})
        if log:
            env["FAULT_LOG"] = str(log)
        words = [str(BIN / self.words[0]), *self.words[1:], "--quiet", "--threads", "2"]
        p = subprocess.Popen(words, cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, errors="replace")
        try:
            out, err = p.communicate(timeout=LIMIT_S)
            return subprocess.CompletedProcess(words, p.returncode, out, err)
        except subprocess.TimeoutExpired:
            why = f"no end after {LIMIT_S} s; its threads: {threads(p.pid)}"
            p.kill()
            p.communicate()
            return subprocess.CompletedProcess(words, 124, "", why)

    def learn(self):
        root = self.folder()
        self.old = tree(root / self.target)
        log = root.parent / "log"
        r = self.run(root, log=log)
        if r.returncode != 0:
            raise RuntimeError(f"{self.name}: undisturbed run ended {r.returncode}: {r.stderr}")
        self.new = tree(root / self.target)
        self.calls = [line.split(" ", 2)[1:] for line in log.read_text().splitlines()]
        shutil.rmtree(root.parent)

    def check(self, mode, k, skip=None, ended=False):
        """None, or what is wrong after a fault at k."""
        root = self.folder()
        kind, _, lose = mode.partition(" ")
        fault = {"mode": kind, "at": k}
        if lose:
            fault["lose"] = lose
        if skip:
            fault["skip_sync"] = skip
        try:
            return self.judge(root, self.run(root, **fault), kind, ended)
        finally:
            shutil.rmtree(root.parent, ignore_errors=True)

    def judge(self, root, r, kind, ended):
        target = root / self.target
        found = tree(target)
        good = found == self.new
        if r.returncode == 0 and not good:
            return f"status 0, but the target is {'absent' if found is None else 'wrong'}"
        if ended and not good:
            return f"the command had ended well, yet the target is {self.state(found)}"
        if not good and found != self.old:
            return f"the target is {self.state(found)}; {self.verdict(target)}"
        allowed = {"kill": (0, -signal.SIGKILL), "tear": (0, -signal.SIGKILL), "short": (0,),
                   "power": (137,)}.get(kind, (0, 4))
        if r.returncode not in allowed:
            return f"status {r.returncode}, expected one of {allowed}: {r.stderr[-300:]}"
        if r.returncode == 4 and not r.stderr.strip():
            return "status 4 without a sentence"
        if good and self.old is None:
            return None
        again = self.run(root)
        if again.returncode != 0:
            return f"the second run ended {again.returncode}: {again.stderr[-300:]}"
        if tree(target) != self.new:
            return f"the second run's target differs; {self.verdict(target)}"
        left = [p.name for p in root.iterdir() if p.name != self.target]
        return f"left behind: {left}" if left else None

    def state(self, found):
        if found is None:
            return "absent"
        wrong = [n for n in {*found, *self.new} if found.get(n) != self.new.get(n)]
        return f"there and wrong in {sorted(wrong)[:3]}"

    def verdict(self, target):
        if not (target / "index.h5").exists():
            return "no index.h5"
        if not (BIN / "glm-verify").exists():
            return "no glm-verify to ask"
        r = subprocess.run([str(BIN / "glm-verify"), "integrity", str(target)],
                           capture_output=True, text=True, errors="replace")
        return f"glm-verify integrity ends {r.returncode}"

    def progress(self, skip=None):
        """None, or what is wrong: power is lost after all data was journaled, before the end; the
        second run must not write that data again."""
        data = [n for n, (call, path) in enumerate(self.calls, 1)
                if call in WRITES and self.is_data(path)]
        journal = [n for n, (call, path) in enumerate(self.calls, 1)
                   if call in ("fsync", "fdatasync") and path.endswith("/journal")]
        if not data or not journal or journal[-1] < data[0]:
            return "the journal is never synced after data"
        root = self.folder()
        try:
            self.run(root, mode="power", at=journal[-1] + 1, **({"skip_sync": skip} if skip else {}))
            log = root.parent / "log"
            again = self.run(root, log=log)
            if again.returncode != 0 or tree(root / self.target) != self.new:
                return "the second run's target differs"
            lines = [line.split(" ", 2)[1:] for line in log.read_text().splitlines()]
            written = sum(c in WRITES and self.is_data(p) for c, p in lines)
            before = sum(n < journal[-1] for n in data)
            # A file's header may be written again; the elements may not.
            again = written - (len(data) - before)
            return f"{again} of {before} durable writes were done again" \
                if again > before // 10 else None
        finally:
            shutil.rmtree(root.parent, ignore_errors=True)

    def is_data(self, path):
        name = path.rsplit("/", 1)[-1]
        return name.startswith("shard-") or name.endswith(".safetensors")


def prepare(top):
    """The toy and the commands on it."""
    config = json.loads((ROOT / "fixtures/configs/t1.json").read_text())
    config.update(num_hidden_layers=3, mlp_layer_types=["dense", "sparse", "sparse"],
                  indexer_types=["full"] * 3, n_routed_experts=4, vocab_size=600)
    (top / "config.json").write_text(json.dumps(config))
    for name, seed in (("src", 0), ("other", 1)):
        subprocess.run([TOOLS / "toy", "--config", top / "config.json", "--out", top / name,
                        "--files", "3", "--seed", str(seed)], check=True)

    def make(*words):
        r = subprocess.run([str(BIN / words[0]), *words[1:], "--quiet"], cwd=top,
                           capture_output=True, text=True)
        if r.returncode != 0:
            raise RuntimeError(f"{' '.join(words)} ended {r.returncode}: {r.stderr}")

    make("glm-import", "src", "ckpt", "--tp", "2", "--ep", "2", "--shard-size", "1MiB")
    make("glm-import", "other", "older")
    make("glm-import", "src", "packed", "--compress", "zstd")
    sealed = Op(top, "import-sealed", ["glm-import", "../../src", "ckpt"], "ckpt",
                syncs=("parent",))
    sealed.beside = [("ckpt.sealed", seal_of(sealed))]
    common = ("shard-*", "index.h5", "journal", "tiles.part", ".", "parent")
    return [
        Op(top, "import", ["glm-import", "../../src", "ckpt", "--tp", "2", "--ep", "2",
                           "--shard-size", "1MiB"], "ckpt", syncs=common),
        Op(top, "import-zstd", ["glm-import", "../../src", "ckpt", "--compress", "zstd"], "ckpt",
           syncs=("shard-*", "chunks.part", "tiles.part")),
        Op(top, "reshard", ["glm-reshard", "../../ckpt", "out", "--tp", "1", "--ep", "4"], "out",
           syncs=common),
        Op(top, "export", ["glm-export", "../../ckpt", "hf", "--max-shard-size", "1MB"], "hf",
           syncs=("*.safetensors", "*.json", "journal", ".", "parent")),
        Op(top, "replace", ["glm-import", "../../src", "ckpt", "--replace"], "ckpt",
           prepare=top / "older", syncs=("parent",)),
        sealed,
    ]


def seal_of(op):
    """The seal of a commit, as a power cut may bring it back after the output was removed."""
    op.learn()
    root = op.folder()
    op.run(root, mode="kill", at=len(op.calls))
    seal = (root / f"{op.target}.sealed").read_bytes()
    shutil.rmtree(root.parent)
    return seal


WRITES = ("write", "pwrite", "writev")
SPACE = WRITES + ("create", "fallocate", "ftruncate", "mkdir", "link")
NAMES = ("create", "mkdir", "link", "rename", "exchange", "unlink", "rmdir", "fsync", "fdatasync")


def applies(mode, call):
    """Is this mode at this call another case than one that is run anyway?"""
    if mode in ("tear", "short"):
        return call in WRITES
    if mode in ("enospc", "edquot"):
        return call in SPACE
    return call in NAMES if mode == "power names" else True


def places(op, mode, all_of_them):
    """The k to try: all, or every call but the many writes of a file, of which the first, one in
    the middle and the last. The call after the last: power goes after the command has ended."""
    by_file, out = {}, []
    for k, (call, path) in enumerate(op.calls, 1):
        if not applies(mode, call):
            continue
        if call in WRITES and not all_of_them:
            by_file.setdefault(path, []).append(k)
        else:
            out.append(k)
    for ks in by_file.values():
        out += {ks[0], ks[len(ks) // 2], ks[-1]}
    if mode.startswith("power"):
        out.append(len(op.calls) + 1)
    return sorted(out)


def sweep(ops, count):
    """Every op in every mode. Lines: with a count at the end, all taking turns so that few places are
    spread evenly; without one as each is done."""
    todo = {(op, mode): places(op, mode, count is None) for op in ops for mode in MODES}
    found = {key: [] for key in todo}
    done = {key: 0 for key in todo}

    def one(job):
        op, mode, k = job
        why = op.check(mode, k, None, mode.startswith("power") and k > len(op.calls))
        done[op, mode] += 1
        if why:
            found[op, mode].append((k, why))

    def line(op, mode):
        name = f"{op.name}: {mode} at {done[op, mode]} of {len(op.calls)} changes"
        bad = sorted(found[op, mode])
        if bad:
            k, why = bad[0]
            call = " ".join(op.calls[k - 1]) if k <= len(op.calls) else "the end"
            return f"FAIL {name}: {len(bad)} wrong; first at {k} ({call}): {why}"
        return f"ok {name}" if done[op, mode] else f"SKIP {name}: not among so few places"

    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        if count is None:
            for (op, mode), ks in todo.items():
                list(pool.map(one, [(op, mode, k) for k in ks]))
                yield line(op, mode)
            return
        queue, turn = [], 0
        while any(turn < len(ks) for ks in todo.values()):
            # 7 is no divisor of the lists' patterns: early turns are spread over a list.
            queue += [(op, mode, ks[turn * 7 % len(ks)] if len(ks) % 7 else ks[turn])
                      for (op, mode), ks in todo.items() if turn < len(ks)]
            turn += 1
        list(pool.map(one, queue[:count]))
        yield from (line(op, mode) for op, mode in todo)


def matters(op, skip):
    """Does the program without this fsync break a rule? One line."""
    name = f"{op.name}: without the fsync of {skip} the sweep fails"
    if not any(call in ("fsync", "fdatasync") for call, _ in op.calls):
        return f"FAIL {name}: there is no fsync at all"
    if skip == "journal":
        why = op.progress()
        if why:
            return f"FAIL {name}: even with it, {why}"
        why = op.progress(skip)
        return f"ok {name} ({why})" if why else f"FAIL {name}: nothing was lost"
    for k in range(len(op.calls) + 1, 0, -1):
        for mode in ("power", "power data"):
            why = op.check(mode, k, skip, k > len(op.calls))
            if why:
                return f"ok {name} (at {k}: {why})"
    return f"FAIL {name}: nothing was lost at any of {len(op.calls) + 1} places"


def main(count, only=None):
    """So many places, chosen (see places); every k if count is None."""
    wanted = ["glm-import", "glm-reshard", "glm-export"]
    missing = [w for w in wanted if not (BIN / w).exists()]
    if missing:
        print(f"SKIP faults: {', '.join(missing)} is not built")
        return 77
    began = time.monotonic()
    status = 0
    # Symbolic names are resolved: the shim compares real paths.
    with tempfile.TemporaryDirectory(prefix="glm-fault-") as folder:
        ops = [o for o in prepare(pathlib.Path(folder).resolve()) if not only or o.name in only]
        for op in ops:
            op.learn()
        print(f"# {sum(len(o.calls) for o in ops)} changes in {len(ops)} commands")
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            lines = pool.map(lambda job: matters(*job),
                             [(op, skip) for op in ops for skip in op.syncs])
            for line in itertools.chain(lines, sweep(ops, count)):
                status |= line.startswith("FAIL")
                print(line.replace("\n", " "), flush=True)
    print(f"# {time.monotonic() - began:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main(None, sys.argv[1:]))
