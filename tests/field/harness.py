"""What the tests of field reports share: running commands, models taken apart, what a refusal is.

Expected of every refusal, beside its sentence: the exit status; nothing on stdout; no output, and
nothing half-written that a command accepts; an existing output as it was, with --replace too; no
crash and no more than 512 MB."""
import hashlib
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BIN", ROOT / "build/release/bin")).resolve()
TOOLS = pathlib.Path(os.environ.get("TOOLS", ROOT / "build/release/tools")).resolve()
CONFIGS = ROOT / "fixtures/configs"
INDEX = "model.safetensors.index.json"
MEMORY_LIMIT_KB = 512 * 1024

reports = {}


class Failure(Exception):
    pass


class Skip(Exception):
    pass


def report(name):
    """Registers a test under the id of its field report."""
    def add(function):
        reports[name] = function
        return function
    return add


def expect(condition, sentence):
    if not condition:
        raise Failure(sentence)


def same(found, wanted, what):
    if isinstance(found, dict) and isinstance(wanted, dict) and found != wanted:
        odd = sorted(k for k in {*found, *wanted} if found.get(k) != wanted.get(k))
        raise Failure(f"{what}: {len(odd)} differ, first {odd[:3]}; found "
                      f"{str(found.get(odd[0]))[:80]}, expected {str(wanted.get(odd[0]))[:80]}")
    if found != wanted:
        raise Failure(f"{what}: found {str(found)[:300]}, expected {str(wanted)[:300]}")


# ---- commands -----------------------------------------------------------------------------------

class Result:
    def __init__(self, words, status, out, err, peak_kb):
        self.words, self.status, self.out, self.err = words, status, out, err
        self.peak_kb = peak_kb

    def __str__(self):
        return f"{' '.join(map(str, self.words))}: status {self.status}: {self.err.strip()[-600:]}"


def run(*words, front=(), cwd=None, env=None, seconds=600):
    """One command to its end; words[0] is a command of ours or a path."""
    program = BIN / words[0]
    words = [str(w) for w in (*front, program if program.exists() else words[0], *words[1:])]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        p = subprocess.Popen(words, stdout=out, stderr=err, cwd=cwd, stdin=subprocess.DEVNULL,
                             env={**os.environ, **(env or {})})
        began = time.monotonic()
        while True:
            pid, status, usage = os.wait4(p.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() - began > seconds:
                p.kill()
                os.wait4(p.pid, 0)
                raise Failure(f"{' '.join(words)}: no end after {seconds} s")
            time.sleep(0.002)
        p.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        result = Result(words, p.returncode, out.read().decode(errors="replace"),
                        err.read().decode(errors="replace"), usage.ru_maxrss)
    expect(p.returncode >= 0, f"crashed: {result}")
    return result


def works(*words, **how):
    r = run(*words, **how)
    expect(r.status == 0, str(r))
    return r


def answer(*words, **how):
    """The object that a command prints with --json."""
    return json.loads(works(words[0], "--json", "--quiet", *words[1:], **how).out)


def file_digest(path):
    """By blocks: a command started from here counts this process's greatest memory as its own."""
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def tree(folder):
    """{path: digest} of everything below a folder, None if it is not there."""
    folder = pathlib.Path(folder)
    if not os.path.lexists(folder):
        return None
    return {str(p.relative_to(folder)): file_digest(p)
            for p in sorted(folder.rglob("*")) if p.is_file()}


def not_accepted(path):
    """Nothing at path, or something that no command takes for a checkpoint or a model."""
    if not os.path.lexists(path):
        return
    with tempfile.TemporaryDirectory() as there:
        for words in (["glm-verify", "integrity", path], ["glm-inspect", path],
                      ["glm-export", path, f"{there}/e"], ["glm-import", path, f"{there}/i"],
                      ["glm-reshard", path, f"{there}/r"]):
            r = run(*words)
            expect(r.status in (1, 3), f"half-written output is accepted: {r}")


def says(r, status, *parts):
    expect(r.status == status, f"expected status {status}: {r}")
    expect(r.out == "", f"a refusal prints on stdout: {r.out[:200]}")
    for part in parts:
        expect(part in r.err, f"the message lacks '{part}': {r}")
    expect(r.peak_kb <= MEMORY_LIMIT_KB, f"{r.peak_kb} kB of memory: {r}")


class Place:
    """A folder for one test, and the toys that all of them share."""
    shared = None
    toys = {}

    def __init__(self, top):
        self.top = pathlib.Path(tempfile.mkdtemp(dir=top, prefix="report-"))
        self.count = 0

    def new(self, word="out"):
        self.count += 1
        return self.top / f"{word}{self.count}"

    def toy(self, *options, config="t1"):
        """The T1 toy (tests/support/toy.h), in four files unless told. Do not change it."""
        key = (str(config), *options)
        if key not in self.toys:
            out = self.shared / f"toy{len(self.toys)}"
            path = CONFIGS / f"{config}.json" if isinstance(config, str) else config
            files = [] if "--files" in options else ["--files", "4"]
            works(TOOLS / "toy", "--config", path, "--out", out, *files, *options)
            self.toys[key] = out
        return self.toys[key]

    def model(self, *options, config="t1"):
        """The same as a Model of its own, free to be changed."""
        out = self.new("model")
        shutil.copytree(self.toy(*options, config=config), out)
        return Model(out)

    def good(self):
        """A small good checkpoint that refusals must not touch."""
        out = self.shared / "good"
        if not out.exists():
            works(TOOLS / "smallckpt", out)
        return out

    def checkpoint(self, source, *options):
        out = self.new("ckpt")
        works("glm-import", "--quiet", *options, source, out)
        return out

    def exported(self, ckpt, *options):
        out = self.new("hf")
        works("glm-export", "--quiet", *options, ckpt, out)
        return Model(out)

    def fingerprint(self, ckpt):
        return answer_mode("integrity", ckpt)["fingerprint"]

    def refused(self, command, source, *parts, options=(), status=3):
        """The command with this source is refused, whether or not an output exists."""
        out = self.new("refused")
        r = run(command, "--quiet", *options, source, out)
        says(r, status, *parts)
        expect(not os.path.lexists(out), f"an output is there: {r}")
        not_accepted(f"{out}.partial")
        good = self.good()
        before = tree(good)
        says(run(command, "--quiet", "--replace", *options, source, good), status, *parts)
        expect(tree(good) == before, f"an existing output was changed: {r}")
        shutil.rmtree(f"{good}.partial", ignore_errors=True)
        return r


def answer_mode(mode, *words):
    return json.loads(works("glm-verify", mode, "--json", "--quiet", *words).out)


def equal(a, b, *options):
    """glm-verify diff finds no difference; whole sections unless told otherwise."""
    r = answer_mode("diff", *options, a, b)
    expect(r["equal"] is True, f"{a} and {b} differ: {r['differences'][:2]}")
    return r


# ---- models -------------------------------------------------------------------------------------

class Tensor:
    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, list(shape), data

    def __eq__(self, other):
        return (self.dtype, self.shape, self.data) == (other.dtype, other.shape, other.data)

    def __repr__(self):
        return f"{self.dtype}{self.shape} {hashlib.sha256(self.data).hexdigest()[:8]}"


def read_header(path):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        return json.loads(f.read(size)), 8 + size


def read_safetensors(path):
    header, start = read_header(path)
    data = pathlib.Path(path).read_bytes()
    return {n: Tensor(t["dtype"], t["shape"], data[start + t["data_offsets"][0]:
                                                   start + t["data_offsets"][1]])
            for n, t in header.items() if n != "__metadata__"}


def write_safetensors(path, tensors, metadata=None):
    header, at = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, t in tensors.items():
        header[name] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": [at, at + len(t.data)]}
        at += len(t.data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            f.write(t.data)


class Model:
    """A Hugging Face directory in memory. save() writes files and index in agreement."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.files = {p.name: read_safetensors(p)
                      for p in sorted(self.folder.glob("*safetensors*")) if p.suffix != ".json"}

    @property
    def tensors(self):
        return {n: t for f in self.files.values() for n, t in f.items()}

    def file_of(self, name):
        return next(f for f, tensors in self.files.items() if name in tensors)

    def take(self, name):
        return self.files[self.file_of(name)].pop(name)

    def drop_like(self, part):
        for tensors in self.files.values():
            for name in [n for n in tensors if part in n]:
                del tensors[name]

    def rename(self, where, old, new):
        for f, tensors in self.files.items():
            self.files[f] = {n.replace(old, new) if where in n else n: t
                             for n, t in tensors.items()}

    def index(self):
        return json.loads((self.folder / INDEX).read_text())

    def write_index(self, index):
        (self.folder / INDEX).write_text(json.dumps(index, indent=2))

    def save(self):
        for p in self.folder.glob("*safetensors*"):
            p.unlink()
        for f, tensors in self.files.items():
            write_safetensors(self.folder / f, tensors, {"format": "pt"})
        total = sum(len(t.data) for t in self.tensors.values())
        self.write_index({"metadata": {"total_size": total},
                          "weight_map": {n: f for f, t in self.files.items() for n in t}})
        return self.folder

    def config(self, **changes):
        """Sets keys of config.json; None removes one."""
        path = self.folder / "config.json"
        config = json.loads(path.read_text())
        for key, value in changes.items():
            config.pop(key, None)
            if value is not None:
                config[key] = value
        path.write_text(json.dumps(config, indent=2))
        return config


def equal_tensors(found, wanted, what="tensors"):
    """Names, shapes, types and bytes."""
    a, b = set(found), set(wanted)
    expect(a == b, f"{what}: {len(b - a)} missing {sorted(b - a)[:3]}, "
           f"{len(a - b)} invented {sorted(a - b)[:3]}")
    for name in found:
        expect(found[name] == wanted[name],
               f"{what}: '{name}' is {found[name]}, not {wanted[name]}")


def changed_config(place, base="t1", **changes):
    """A configuration of its own for the toy generator; its path."""
    config = json.loads((CONFIGS / f"{base}.json").read_text())
    config.update(changes)
    path = place.new("config")
    path.write_text(json.dumps(config, indent=2))
    return path
