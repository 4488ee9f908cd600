#!/usr/bin/env python3
"""Token datasets by other means: h5py reads what glm-data built; a second reader, written from
glm-dataset(5) with the standard library, checks every digest; and a second implementation of order,
stream and packing (fixtures/samples.py) gives the samples that glm-data shows."""
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
sys.path.insert(0, str(ROOT / "fixtures"))
from samples import read, sample  # noqa: E402

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
