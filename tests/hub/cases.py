"""What the tests of imports through the test hub share: the model, its hub, an import, what must hold.

The truth is the import of the same files from a local folder that is shaped like a snapshot in the
cache of the hub's own client. Its provenance names the same repository and commit, so index.h5 and
every shard must be equal byte for byte."""
import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests/hub"), str(ROOT / "tests/field")]
import scenarios  # noqa: E402
from harness import (BIN, MEMORY_LIMIT_KB, Failure, Result, expect, run, same,  # noqa: E402, F401
                     tree, works)
from server import Hub, Revision  # noqa: E402, F401

TOOLS = pathlib.Path(os.environ.get("TOOLS", ROOT / "build/release/tools")).resolve()
TOKEN = "hf_TheTokenThatNobodyMaySee0123456789"
QUICK = ("--retries", "1", "--stall-limit", "4")  # for what is to fail


def clean_env(**more):
    """The environment without what a user may have set for a hub or a proxy."""
    env = {k: v for k, v in os.environ.items()
           if not k.startswith(("HF_", "HUGGING", "TRANSFORMERS_", "CURL_", "SSL_", "REQUESTS_"))
           and "proxy" not in k.lower()}
    return {**env, **{k: str(v) for k, v in more.items()}}


class Place:
    """A folder with a model, what its local import is, and rooms for tests that run side by side."""

    def __init__(self, *toy):
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="glm-hub-"))
        self.model = self.top / "model"
        options = toy or ("--config", ROOT / "fixtures/configs/t1.json", "--files", "4")
        works(TOOLS / "toy", "--out", self.model, *options)
        self.revision = Revision(self.model)
        snapshot = self.cache(self.top / "home")
        works("glm-import", "--quiet", snapshot, self.top / "local")
        self.local = tree(self.top / "local")
        self.lock, self.count = threading.Lock(), 0

    def cache(self, home, repo="test/model", large=True):
        """The model in the cache below a HF_HOME, as the hub's client would have put it there."""
        folder = home / "hub" / f"models--{repo.replace('/', '--')}"
        snapshot = folder / "snapshots" / self.revision.commit
        (folder / "blobs").mkdir(parents=True)
        (folder / "refs").mkdir()
        snapshot.mkdir(parents=True)
        (folder / "refs/main").write_text(self.revision.commit)
        for e in self.revision.entries.values():
            if large or not e.large:
                shutil.copy(e.real, folder / "blobs" / e.etag)
                (snapshot / e.path).symlink_to(f"../../blobs/{e.etag}")
        return snapshot

    def new(self, word="room"):
        with self.lock:
            self.count += 1
            out = self.top / f"{word}{self.count}"
        out.mkdir()
        return out

    def env(self, hub, room, **more):
        return clean_env(HF_ENDPOINT=hub.url, HF_HOME=room / "hf", **more)

    def fetch(self, hub, room, *options, spec="hf://test/model", env=None, front=(), seconds=120):
        """One import through the hub into room/ckpt."""
        return ended(["glm-import", *options, spec, room / "ckpt"],
                     {**self.env(hub, room), **(env or {})}, front, seconds)

    def equal(self, room, r, name="ckpt"):
        expect(r.status == 0, f"ended with {r}")
        same(tree(room / name), self.local, f"the checkpoint of {' '.join(map(str, r.words))}")
        expect(not os.path.lexists(room / f"{name}.partial"), "a partial folder is left")

    def refused(self, room, r, *parts, status=None):
        """One sentence, exit 3 or 4, no output, nothing half-written that is accepted."""
        expect(r.status == status if status else r.status in (3, 4),
               f"expected status {status or '3 or 4'}: {r}")
        same(r.out, "", "stdout of a refusal")
        lines = r.err.strip().splitlines()
        expect(len(lines) == 1 and lines[0].startswith("glm-import: ") and lines[0].isprintable()
               and "\ufffd" not in lines[0] and len(lines[0]) < 1500, f"no single sentence: {r.err[:800]!r}")
        for part in parts:
            expect(part in r.err, f"the message lacks '{part}': {r}")
        expect(not os.path.lexists(room / "ckpt"), f"an output is there: {r}")
        if os.path.lexists(room / "ckpt.partial"):
            v = ended(["glm-verify", "integrity", room / "ckpt.partial"], clean_env())
            expect(v.status in (1, 2, 3), f"what is half-written is accepted: {v}")

    def close(self):
        for folder, _, _ in os.walk(self.top):
            os.chmod(folder, 0o755)
        shutil.rmtree(self.top, ignore_errors=True)


def ended(words, env, front=(), seconds=120):
    """One command to its end, within 512 MB; safe beside other threads."""
    words = [str(w) for w in (*front, BIN / words[0], *words[1:])]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        p = subprocess.Popen(words, env={k: str(v) for k, v in env.items()}, stdout=out, stderr=err,
                             stdin=subprocess.DEVNULL)
        late = threading.Timer(seconds, p.kill)
        late.start()
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        expect(late.is_alive(), f"{' '.join(words)}: no end after {seconds} s")
        late.cancel()
        texts = []
        for f in (out, err):
            f.seek(0)
            texts.append(f.read().decode(errors="replace"))
    expect(p.returncode >= 0, f"crashed by signal {-p.returncode}: {' '.join(words)}: {texts[1]}")
    expect(usage.ru_maxrss <= MEMORY_LIMIT_KB, f"{usage.ru_maxrss} kB of memory: {words}")
    return Result(words, p.returncode, *texts, usage.ru_maxrss)


def start(words, env, **how):
    """The same in the background. A shell's background command ignores SIGINT, and so would what it
    starts; this one does not."""
    how.setdefault("preexec_fn", lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    return subprocess.Popen([str(BIN / words[0]), *map(str, words[1:])], text=True,
                            env={k: str(v) for k, v in env.items()}, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)


def sent(log, kind=None, large=True):
    """Intervals of each file's bytes that the log's requests got, {file: [(from, to)]}."""
    out = {}
    for x in log:
        if x["sent"] and x["file"] and x["kind"] in (kind or ("cdn", "cache", "resolve")) \
                and x["status"] in (200, 206) and x["method"] == "GET" \
                and (not large or ".safetensors" in x["file"] and ".json" not in x["file"]):
            out.setdefault(x["file"], []).append((x["from"], x["from"] + x["sent"]))
    return out


def merged(intervals):
    out = []
    for a, b in sorted(intervals):
        if out and a <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], b))
        else:
            out.append((a, b))
    return out


def overlap(first, second):
    """Bytes that are in both lists of intervals."""
    return sum(max(0, min(b, d) - max(a, c))
               for a, b in merged(first) for c, d in merged(second))


def main(tests, words=(), workers=8, make=Place):
    """Runs tests (name, function) side by side; their lines and counts as run.sh wants them."""
    names = [w for w in (words or sys.argv[1:]) if not w.startswith("--")]
    chosen = [(n, f) for n, f in tests if not names or n in names]
    unknown = [n for n in names if n not in dict(tests)]
    if unknown or not chosen:
        print(f"FAIL {unknown or 'nothing'}: there is no such test")
        return 1
    passed = failed = skipped = 0
    place = make()
    try:
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            jobs = {pool.submit(f, place): n for n, f in chosen}
            for job in concurrent.futures.as_completed(jobs):
                try:
                    reason = job.result()
                    if reason:
                        skipped += 1
                        print(f"SKIP {jobs[job]}: {reason}", flush=True)
                    else:
                        passed += 1
                        print(f"ok {jobs[job]}", flush=True)
                except Exception as why:  # a test that breaks has failed; the others go on
                    failed += 1
                    kind = "" if isinstance(why, Failure) else f"{type(why).__name__}: "
                    print(f"FAIL {jobs[job]}: {kind}{' '.join(str(why).split())[:1500]}",
                          flush=True)
    finally:
        place.close()
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0
