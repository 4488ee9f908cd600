#!/usr/bin/env python3
"""Token datasets by other means: h5py reads what glm-data built; a second reader, written from
glm-dataset(5) with the standard library, checks every digest; and a second implementation of order,
stream, packing and blends gives the samples that glm-data shows."""
import hashlib
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(os.environ.get("BIN", ROOT / "build/release/bin")) / "glm-data"
try:
    import h5py
    import numpy as np
except ImportError:
    h5py = None
if not DATA.exists():
    print("glm-data is not built")
    sys.exit(77)


def glm_data(*words, status=0):
    r = subprocess.run([DATA, *map(str, words)], capture_output=True, text=True)
    assert r.returncode == status, (words, r.returncode, r.stderr)
    return r.stdout if status == 0 else r.stderr


# ---- the format ------------------------------------------------------------------------------

def sha(data):
    return hashlib.sha256(data).hexdigest()


def read(path):
    """(documents, masks, fingerprint) of our file; every digest checked."""
    whole = pathlib.Path(path).read_bytes()
    block = whole[:4096]
    text, zeros = block.split(b"\0", 1)[0], block[len(block.split(b"\0", 1)[0]):]
    assert not any(zeros)
    lines = text.decode().splitlines()
    f = {l.split(" ")[0]: l.split(" ")[1:] for l in lines}
    assert lines[0] == "GLMDATA 1" and int(f["size"][0]) == len(whole)
    assert f["self"][0] == sha("".join(l + "\n" for l in lines[:-1]).encode())
    size, letter = {"U16": (2, "H"), "I32": (4, "i")}[f["dtype"][0]]
    parts, covered = {}, []
    for name, unit, more in (("tokens", size, 0), ("documents", 8, 1), ("mask", 1, 0)):
        at, n = int(f[name][0]), int(f[name][1])
        data = whole[at:at + unit * (n + more)] if at else b""
        assert sha(data) == f[name][2], name
        parts[name] = data
        if at:
            covered.append((at, at + len(data)))
    rest, end = b"", 4096
    for a, b in sorted(covered):
        assert a >= end
        rest, end = rest + whole[end:a], b
    assert sha(rest + whole[end:]) == f["rest"][0]
    ids = struct.unpack("<%d%s" % (len(parts["tokens"]) // size, letter), parts["tokens"])
    marks = struct.unpack("<%dq" % (len(parts["documents"]) // 8), parts["documents"])
    assert max(ids) == int(f["largest"][0])
    mask = parts["mask"] or bytes([1]) * len(ids)
    spans = list(zip(marks, marks[1:]))
    return [list(ids[a:b]) for a, b in spans], [list(mask[a:b]) for a, b in spans], sha(block)


# ---- the order -------------------------------------------------------------------------------

def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xffffffff, (a >> 32) ^ c[3] ^ k[1], a & 0xffffffff]
        k = [(k[0] + 0x9E3779B9) & 0xffffffff, (k[1] + 0xBB67AE85) & 0xffffffff]
    return c


def permute(n, seed, purpose, name, epoch, i):
    p = struct.unpack("<I", hashlib.sha256(purpose.encode()).digest()[:4])[0]
    n0, n1 = struct.unpack("<II", hashlib.sha256(name.encode()).digest()[:8])
    bits = (n - 1).bit_length()
    low, high = bits - bits // 2, bits // 2

    def f(half, r):
        return philox((half, r + 16 * epoch, n0, n1), (seed, p))[0]
    v = i
    while True:
        lo, hi = v % 2**low, v >> low
        for r in (0, 2, 4):
            lo ^= f(hi, r) % 2**low
            hi ^= f(lo, r + 1) % 2**high
        v = hi << low | lo
        if v < n:
            return v


def border(shares, k, documents):
    s, c = sum(shares), sum(shares[:k])
    return (2 * documents * c + s) // (2 * s)


def sample(docs, masks, print_, part, shares, packing, L, seed, i):
    k = ["train", "valid", "test"].index(part)
    lo, hi = border(shares, k, len(docs)), border(shares, k + 1, len(docs))
    docs, masks, name = docs[lo:hi], masks[lo:hi], print_ + " " + part

    def order(epoch):
        return [permute(len(docs), seed, "document order", name, epoch, r) for r in range(len(docs))]
    if packing == "stream":
        n = (sum(map(len, docs)) - 1) // L
        e = i // n
        c = permute(n, seed, "sample order", name, e, i % n)
        stream = [t for d in order(e) for t in docs[d]]
        mask = [t for d in order(e) for t in masks[d]]
        at = c * L
        return {"epoch": e, "cut": c, "samples": n, "rows": L, "cu_seqlens": [0, L],
                "tokens": stream[at:at + L], "labels": stream[at + 1:at + L + 1],
                "mask": mask[at + 1:at + L + 1], "positions": list(range(L))}
    packs, room = [], 0
    for d in order(0):
        rows = [(a, b, m) for a, b, m in zip(docs[d], docs[d][1:], masks[d][1:])]
        for at in range(0, len(rows), L):
            piece = rows[at:at + L]
            if len(piece) > room:
                packs.append([])
                room = L
            packs[-1].append(piece)
            room -= len(piece)
    e = i // len(packs)
    c = permute(len(packs), seed, "sample order", name, e, i % len(packs))
    pack, used = list(packs[c]), sum(map(len, packs[c]))
    if used < L:
        pack.append([(0, 0, 0)] * (L - used))
    cu = [0]
    for piece in pack:
        cu.append(cu[-1] + len(piece))
    flat = [r for piece in pack for r in piece]
    return {"epoch": e, "cut": c, "samples": len(packs), "rows": used, "cu_seqlens": cu,
            "tokens": [r[0] for r in flat], "labels": [r[1] for r in flat],
            "mask": [r[2] for r in flat], "positions": [p for q in pack for p in range(len(q))]}


# ---- tests -----------------------------------------------------------------------------------

work = pathlib.Path(tempfile.mkdtemp(prefix="glm-datasets-"))
rng = random.Random(20)
DOCS = [[rng.randrange(150000) for _ in range(rng.choice((0, 1, 2, rng.randrange(60))))]
        for _ in range(120)]
MASKS = [[rng.randrange(2) for _ in d] if i % 3 else [1] * len(d) for i, d in enumerate(DOCS)]


def build_all():
    with open(work / "a.jsonl", "w") as f:
        for i, (d, m) in enumerate(zip(DOCS, MASKS)):
            f.write(json.dumps({"ids": d, "mask": m, "text": "x"} if i % 3 else d) + "\n")
            if i % 10 == 0:
                f.write("  \n")
    r = json.loads(glm_data("build", "--from", "jsonl", "--json", work / "ids.h5", work / "a.jsonl"))
    assert r["documents"] == len(DOCS) and r["tokens"] == sum(map(len, DOCS)), r
    assert r["empty"] == sum(not d for d in DOCS) and r["masked"] == sum(m.count(0) for m in MASKS)


def json_lines_come_back():
    docs, masks, _ = read(work / "ids.h5")
    assert docs == DOCS and masks == MASKS


def h5py_reads_what_was_built():
    with h5py.File(work / "ids.h5") as f:
        assert set(f) == {"tokens", "documents", "mask"}
        assert f["tokens"].dtype == np.int32 and f["documents"].dtype == np.int64
        assert f["tokens"][()].tolist() == [t for d in DOCS for t in d]
        assert f["mask"][()].tolist() == [t for d in MASKS for t in d]
        marks = f["documents"][()]
        assert np.diff(marks).tolist() == [len(d) for d in DOCS] and marks[0] == 0
        assert not f["tokens"].attrs and not f["tokens"].id.get_create_plist().get_nfilters()


def raw_files_come_back():
    end, kinds = 7, {"u16": "H", "i32": "i", "i64": "q"}
    docs = [[rng.randrange(8, 60000) for _ in range(n)] + [end] for n in (5, 0, 40000, 1)]
    for kind, letter in kinds.items():
        ids = [t for d in docs for t in d] + [9, 9]
        (work / "raw").write_bytes(struct.pack("<%d%s" % (len(ids), letter), *ids))
        glm_data("build", "--from", "raw", "--raw-dtype", kind, "--document-end", end, "--dtype", "u16",
                 "--replace", work / "raw.h5", work / "raw")
        assert read(work / "raw.h5")[0] == docs + [[9, 9]], kind
        glm_data("build", "--from", "raw", "--raw-dtype", kind, "--replace", work / "raw.h5",
                 work / "raw", work / "raw")
        assert read(work / "raw.h5")[0] == [ids, ids], kind


def text_is_split_at_lines_that_are_equal():
    text = b"one\ntwo\n\n\n\nthree --\n--\n---\n-\n--"
    (work / "t").write_bytes(text)
    for split, want in ((None, [text]), ("", [b"one\ntwo\n", b"three --\n--\n---\n-\n--"]),
                        ("--", [b"one\ntwo\n\n\n\nthree --\n", b"---\n-\n"]),
                        ("-", [b"one\ntwo\n\n\n\nthree --\n--\n---\n", b"--"])):
        more = [] if split is None else ["--split", split]
        glm_data("build", *more, "--replace", work / "t.h5", work / "t")
        assert [bytes(d) for d in read(work / "t.h5")[0]] == want, split
    big = bytes(rng.randrange(32, 127) for _ in range(200001)) + b"\n\nend"
    (work / "t").write_bytes(big)
    glm_data("build", "--split", "", "--append-eos", 300, "--replace", work / "t.h5", work / "t")
    assert read(work / "t.h5")[0] == [list(big[:200002]) + [300], list(b"end") + [300]]


def samples_are_those_of_a_second_implementation():
    docs, masks, fingerprint = read(work / "ids.h5")
    assert json.loads(glm_data("info", "--json", work / "ids.h5"))["fingerprint"] == fingerprint
    for packing in ("stream", "documents"):
        for part, L, seed in (("train", 32, 0), ("train", 7, 5), ("valid", 16, 2**31 - 1), ("test", 3, 1)):
            for i in (0, 1, 50, 777):
                got = json.loads(glm_data("show", "--json", "--sample", i, "--length", L, "--seed", seed,
                                          "--packing", packing, "--split", "7,2,1", "--part", part,
                                          work / "ids.h5"))
                want = sample(docs, masks, fingerprint, part, (7, 2, 1), packing, L, seed, i)
                assert {k: got[k] for k in want} == want, (packing, part, L, seed, i)


def bad_sources_are_named_with_line_and_position():
    for line, says in (('[1,2', "line 2, byte"), ('{"ids":1}', "line 2: expected a list of ids"),
                       ('[1,"a"]', "line 2, position 1: not a whole number"),
                       ('[1,2.5]', "line 2, position 1"), ('[1,-1]', "line 2, document 1, position 1"),
                       ('[1,1000]', "token id 1000 is outside the vocabulary (0 to 999)"),
                       ('[99999999999999999999]', "line 2"), ('{"ids":[1],"mask":[1,1]}', "2 mask elements"),
                       ('{"ids":[1],"mask":[2]}', "mask: expected 0 or 1"), ('{"mask":[1]}', "expected a list"),
                       ('{"ids":[1],"ids":[1]}', "duplicate"), ('[' + '1,' * (9 << 20), "longer than 16777216")):
        (work / "bad").write_text("[1,2,3]\n" + line + "\n")
        e = glm_data("build", "--from", "jsonl", "--vocab", 1000, work / "bad.h5", work / "bad", status=3)
        assert says in e and "bad: line 2" in e, (line[:50], e)
    (work / "bad").write_bytes(b"12345")
    assert "5 bytes are no whole number" in glm_data("build", "--from", "raw", "--raw-dtype", "u16",
                                                     work / "bad.h5", work / "bad", status=3)
    assert "no such file" in glm_data("build", work / "bad.h5", work / "nowhere", status=3)
    assert "does not fit U16" in glm_data("build", "--from", "jsonl", "--dtype", "u16", work / "bad.h5",
                                          work / "a.jsonl", status=3)
    assert not [p for p in work.iterdir() if p.name.startswith("bad.h5")]


# A process inherits the peak of the one that it was split from, hence a small one between.
PEAK = """import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"""


def memory_does_not_grow_with_the_input():
    with open(work / "large", "wb") as f:
        f.truncate(16 << 20)
    peaks = []
    for n in (1, 4):
        r = subprocess.run([sys.executable, "-c", PEAK, DATA, "build", "--quiet", "--replace",
                            work / "large.h5"] + [work / "large"] * n, capture_output=True, check=True)
        peaks.append(int(r.stdout))
    assert peaks[1] < 40 << 10 and peaks[1] < peaks[0] + 4096, peaks


failed = False
build_all()
for f in (json_lines_come_back, h5py_reads_what_was_built, raw_files_come_back,
          text_is_split_at_lines_that_are_equal, samples_are_those_of_a_second_implementation,
          bad_sources_are_named_with_line_and_position, memory_does_not_grow_with_the_input):
    if f is h5py_reads_what_was_built and h5py is None:
        print("SKIP h5py_reads_what_was_built: no h5py")
        continue
    try:
        f()
        print("ok " + f.__name__)
    except AssertionError as e:
        print("FAIL %s: %s" % (f.__name__, str(e)[:2000]))
        failed = True
shutil.rmtree(work)
sys.exit(failed)
