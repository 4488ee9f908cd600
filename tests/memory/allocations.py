"""Allocations that fail: each command on a tiny model, with tests/memory/memory.c before it.

For each command and each k, in a fresh folder, the command whose k-th allocation fails, then

    the status is 0 or 4, never a signal; with 4 there is one sentence on stderr, and no more
    the target is absent, or equal byte for byte to that of an undisturbed run; with 0 it is there,
    and stdout says what it says undisturbed
    the same command again ends 0 and its target equals the undisturbed one; nothing else stays

Only what the executable itself allocates fails: libhdf5 and libcurl have authors of their own."""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests/hub"), str(ROOT / "tests/fault")]
import cases  # noqa: E402
import sweep as faults  # noqa: E402

BIN, TOOLS, JOBS = faults.BIN.resolve(), faults.TOOLS.resolve(), faults.JOBS
SHIM = TOOLS.parent / "libmemory.so"
RECIPE = ROOT / "fixtures/recipes/tiny-demo.yaml"


class Op:
    """A command in an empty folder, which lies beside what all commands read."""

    def __init__(self, top, name, words, target=None, env=None, again=(), varies=None,
                 beside=None, apart=()):
        self.top, self.name, self.words, self.target = top, name, words, target
        self.env = env or {}
        self.again = again    # words that the second run has besides
        self.varies = varies  # lines of stdout that may be missing or differ
        self.beside = beside  # what it makes besides
        self.apart = apart    # files of the target that tell how it came about
        self.new = self.said = None
        self.count = 0

    def run(self, room, *more, at=0):
        env = cases.clean_env(LD_PRELOAD=SHIM, MEMORY_AT=at, MEMORY_COUNT=room.parent / "count",
                              MEMORY_HIT=room.parent / "hit", HF_HOME=room.parent / "hf", **self.env)
        words = [str(BIN / self.words[0]), *map(str, self.words[1:]), *more]
        try:
            return subprocess.run(words, cwd=room, env=env, capture_output=True, text=True,
                                  errors="replace", timeout=faults.LIMIT_S)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(words, 124, "", f"no end after {faults.LIMIT_S} s")

    def room(self):
        room = pathlib.Path(tempfile.mkdtemp(dir=self.top, prefix=f"{self.name}-")) / "room"
        room.mkdir()
        return room

    def found(self, room):
        """Bytes of the target, a folder or a file; None if there is none."""
        target = room / self.target if self.target else None
        if target is None or not target.exists():
            return None
        if target.is_file():
            return target.read_bytes()
        return {name: digest for name, digest in faults.tree(target).items()
                if name not in self.apart}

    def heard(self, out):
        return re.sub(self.varies, "", out, flags=re.M) if self.varies else out

    def learn(self):
        room = self.room()
        r = self.run(room)
        if r.returncode != 0:
            raise RuntimeError(f"{self.name}: undisturbed run ended {r.returncode}: {r.stderr}")
        self.count = int((room.parent / "count").read_text())
        if self.count == 0:
            raise RuntimeError(f"{self.name}: no allocation was seen, so none could fail")
        self.new, self.said = self.found(room), self.heard(r.stdout)
        if self.target and self.new is None:
            raise RuntimeError(f"{self.name}: made no {self.target}")
        shutil.rmtree(room.parent)

    def check(self, k):
        """None, or what is wrong after call k failed."""
        room = self.room()
        try:
            r = self.run(room, at=k)
            hit = room.parent / "hit"
            if not hit.exists():  # with threads, there are now and then fewer calls
                return None if r.returncode == 0 else f"status {r.returncode}, though none failed"
            why = self.judge(room, r)
            return f"{why}; it failed at {self.place(hit.read_text().strip())}" if why else None
        finally:
            shutil.rmtree(room.parent, ignore_errors=True)

    def judge(self, room, r):
        if r.returncode not in (0, 4):
            return f"status {r.returncode}: {r.stderr[-300:]}"
        if r.returncode == 4 and not re.fullmatch(rf"{self.words[0]}: [^\n]+\n", r.stderr):
            return f"status 4, and not one sentence: {r.stderr[-300:]!r}"
        found = self.found(room)
        if found is not None and found != self.new or r.returncode == 0 and found != self.new:
            return f"status {r.returncode}, and the target is {'absent' if found is None else 'wrong'}"
        if r.returncode == 0 and self.heard(r.stdout) != self.said:
            return f"status 0, and stdout differs: {r.stdout[-300:]!r}"
        if self.target is None or found is not None:
            return None
        again = self.run(room, *self.again)
        if again.returncode != 0:
            return f"the second run ended {again.returncode}: {again.stderr[-300:]}"
        if self.found(room) != self.new:
            return "the second run's target differs"
        own = (pathlib.Path(self.target).parts[0], self.beside)
        left = [p.name for p in room.iterdir() if p.name not in own]
        return f"left behind: {left}" if left else None

    def place(self, address):
        r = subprocess.run(["addr2line", "-i", "-s", "-f", "-e", BIN / self.words[0], address],
                           capture_output=True, text=True)
        return " ".join(r.stdout.split()) or address


def prepare(top, hub):
    """The commands; src is the model that their paths begin at, as seen from a room."""
    def make(*words):
        r = subprocess.run([str(BIN / words[0]), *words[1:]], cwd=top, capture_output=True, text=True)
        if r.returncode != 0:
            raise RuntimeError(f"{' '.join(words)} ended {r.returncode}: {r.stderr}")

    make("glm-import", "--quiet", "--tp", "2", "--pp", "2", "--ep", "4", "src", "ckpt")
    make("glm-convert", "--quiet", "--dtype", "mxfp8", "ckpt", "mx")
    (top / "text").write_text("A byte a token.\n" * 40)
    make("glm-data", "build", "--quiet", "text.h5", "text")
    (top / "run").mkdir()
    (top / "run/metrics.jsonl").write_bytes((ROOT / "fixtures/metrics/metrics.jsonl").read_bytes())
    two = ("--quiet", "--threads", "2")
    grid = ("--tp", "2", "--pp", "2", "--ep", "4")
    src, ckpt, mx = "../../src", "../../ckpt", "../../mx"
    web = {"HF_ENDPOINT": hub.url, "HF_TOKEN": cases.TOKEN}
    tiny = [w for s in (f"load={ckpt}", "data=../../text.h5", "split=100,0,0", "eval_iters=0",
                         "train_iters=2", "lr_warmup_iters=0", "save_interval=1")
             for w in ("--set", s)]
    return [
        Op(top, "import", ["glm-import", *two, *grid, src, "out"], "out"),
        Op(top, "import, zstd, mxfp8", ["glm-import", *two, *grid, "--compress", "zstd", "--dtype",
                                        "mxfp8", src, "out"], "out"),
        Op(top, "import --dry-run", ["glm-import", *two, *grid, "--dry-run", src, "out"],
           varies=r"^estimate .*\n"),
        Op(top, "import of a part", ["glm-import", *two, "--layers", "0-2", "--experts", "0-3", src,
                                     "out"], "out"),
        Op(top, "import from a hub", ["glm-import", *two, "hf://test/model", "out"], "out", web),
        Op(top, "import from a hub, zstd, files kept", ["glm-import", *two, "--compress", "zstd",
                                                        "--keep", "kept", "hf://test/model",
                                                        "out"], "out", web, beside="kept"),
        Op(top, "export", ["glm-export", *two, ckpt, "out"], "out"),
        Op(top, "export --same-files", ["glm-export", *two, "--same-files", ckpt, "out"], "out"),
        Op(top, "export of mxfp8", ["glm-export", *two, mx, "out"], "out"),
        Op(top, "convert", ["glm-convert", *two, "--dtype", "mxfp8", ckpt, "out"], "out"),
        Op(top, "convert to fp8", ["glm-convert", *two, "--dtype", "fp8", ckpt, "out"], "out"),
        Op(top, "reshard", ["glm-reshard", *two, "--tp", "1", "--pp", "4", "--ep", "2", ckpt, "out"],
           "out"),
        Op(top, "verify integrity", ["glm-verify", "integrity", *two, ckpt]),
        Op(top, "verify diff", ["glm-verify", "diff", *two, ckpt, src]),
        Op(top, "verify diff, a tolerance", ["glm-verify", "diff", *two, "--rtol", "1", mx, src]),
        Op(top, "inspect --tree", ["glm-inspect", "--tree", ckpt]),
        Op(top, "inspect --json", ["glm-inspect", "--json", ckpt]),
        Op(top, "inspect --svg", ["glm-inspect", "--svg", "out.svg", ckpt], "out.svg"),
        Op(top, "inspect a tensor", ["glm-inspect", ckpt, "model.embed_tokens.weight"]),
        Op(top, "data build", ["glm-data", "build", "--quiet", "out.h5", "../../text"], "out.h5"),
        Op(top, "data check", ["glm-data", "check", "../../text.h5"]),
        Op(top, "train", ["glm-train", "--device", "cpu", *two, *tiny, "--run", "run", RECIPE],
           "run/step-000000002", again=("--resume",), varies=r"^time .*\n",
           apart=("index.h5",)),
        Op(top, "inspect --metrics", ["glm-inspect", "--metrics", "../../run", "--svg", "out.svg"],
           "out.svg"),
        Op(top, "verify resume", ["glm-verify", "resume", *two, *tiny, "--steps",
                                  "1,1", "--dir", "out", RECIPE]),
    ]


def places(op, share):
    """So many k, evenly spread, the first and the last among them."""
    few = min(op.count, share)
    return sorted({1 + i * (op.count - 1) // max(1, few - 1) for i in range(few)})


def line(op, share):
    ks = places(op, share)
    bad = [(k, why) for k in ks if (why := op.check(k))]
    name = f"{op.name}: {len(ks)} of {op.count} allocations fail"
    if bad:
        return f"FAIL {name}: {len(bad)} wrong; first at {bad[0][0]}: {bad[0][1]}"
    return f"ok {name}"


def main(share, only=()):
    """So many allocations of each command, or all where there are fewer."""
    began, status = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="glm-memory-") as folder:
        top = pathlib.Path(folder).resolve()
        subprocess.run([TOOLS / "tiny", ROOT / "fixtures/tiny-a-bf16", top / "src"], check=True)
        with cases.Hub(top / "src") as hub:
            ops = [o for o in prepare(top, hub) if not only or o.name.startswith(tuple(only))]
            for op in ops:
                op.learn()
            with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
                for text in pool.map(lambda op: line(op, share), ops):
                    status |= text.startswith("FAIL")
                    print(text.replace("\n", " "), flush=True)
    print(f"# {time.monotonic() - began:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.maxsize, sys.argv[1:]))
