#!/usr/bin/env python3
"""The shipped Python reader, h5py and h5dump against checkpoints written by the library.

Truth is computed here a second time from the definition of smallckpt's elements
(tests/support/smallckpt.h). Runs under this interpreter, and again under the system's if that is
another one with numpy."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = pathlib.Path(os.environ.get("TOOLS", ROOT / "build/release/tools"))
PLUGIN = TOOLS.parent / "plugin"
CASES = {
    "plain": ["tp2,pp2,ep4"],
    "packed": ["zstd", "tp2,pp2,ep2,etp2", "split"],
    "training": ["training", "tp2,ep2"],
    "training-packed": ["training", "zstd", "tp4,pp2"],
    "mxfp8": ["mxfp8", "zstd", "ep2"],
    "fp8": ["fp8", "tp2"],
    "nomtp": ["nomtp"],
}

# The venv is where h5py may be; without numpy there is nothing to test.
wanted = os.environ.get("PYTHON")
if wanted and "GLM_INNER" not in os.environ:
    os.environ["GLM_INNER"] = "1"
    results = [subprocess.run([p, __file__]).returncode for p in {wanted, "/usr/bin/python3"}]
    sys.exit(max(r for r in results if r != 77) if any(r != 77 for r in results) else 77)
try:
    import numpy as np
except ImportError:
    print("no numpy in " + sys.executable)
    sys.exit(77)
sys.path.insert(0, str(ROOT / "python"))
import glm_checkpoint as reader  # noqa: E402

os.environ["HDF5_PLUGIN_PATH"] = str(PLUGIN)
os.environ["HDF5_USE_FILE_LOCKING"] = "FALSE"
try:
    import h5py
except ImportError:
    h5py = None
WHO = "%s: " % sys.executable.replace(str(ROOT), "").lstrip("/")
failed = False


def test(f):
    global failed
    try:
        f()
        print("ok " + WHO + f.__name__)
    except Exception as e:  # noqa: BLE001 - a test's failure is a line
        import traceback
        traceback.print_exc()
        print("FAIL %s%s: %s" % (WHO, f.__name__, e))
        failed = True


def fnv(text):
    h = 0xcbf29ce484222325
    for c in text.encode():
        h = (h ^ c) * 0x100000001b3 & (1 << 64) - 1
    return h


def mixed(section, name, n):
    with np.errstate(over="ignore"):
        x = np.arange(n, dtype=np.uint64) + np.uint64(fnv(section + "/" + name))
        x = x + np.uint64(0x9e3779b97f4a7c15)
        x = (x ^ x >> np.uint64(30)) * np.uint64(0xbf58476d1ce4e5b9)
        x = (x ^ x >> np.uint64(27)) * np.uint64(0x94d049bb133111eb)
        return x ^ x >> np.uint64(31)


def truth(t):
    """The stored elements of a tensor, from their definition."""
    n = int(np.prod(t.shape, dtype=np.int64))
    x = mixed("master" if t.derived else t.section, t.name, n)
    if t.derived:
        u = x & np.uint64(0x807FFFFF) | np.uint64(0x3C000000)
        bits = (u + np.uint64(0x7FFF) + (u >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
    elif t.dtype == "BF16":
        bits = x & np.uint64(0x80FF) | np.uint64(0x3C00)
    elif t.dtype == "F32":
        bits = x & np.uint64(0x807FFFFF) | np.uint64(0x3C000000)
    elif t.dtype == "F8_E4M3":
        bits = x & np.uint64(0x8F) | np.uint64(0x30)
    elif t.dtype == "F8_E8M0":
        bits = np.uint64(120) + x % np.uint64(8)
    else:
        bits = x
    size = np.dtype(reader.STORED[t.dtype]).itemsize
    raw = np.ascontiguousarray(bits).view(np.uint8).reshape(n, 8)[:, :size]
    return np.ascontiguousarray(raw).reshape(-1).view("u%d" % size if size < 8 else "<u8").reshape(t.shape)


def bits_of(a):
    shape, a = np.shape(a), np.ascontiguousarray(a)
    return a.view("u%d" % a.dtype.itemsize if a.dtype.itemsize < 8 else "<u8").reshape(shape)


work = pathlib.Path(tempfile.mkdtemp())
for case, words in CASES.items():
    subprocess.run([TOOLS / "smallckpt", work / case, *words], check=True)


def reads_every_element():
    for case in CASES:
        with reader.open(work / case) as c:
            for (section, name), t in c.tensors.items():
                got = bits_of(c.read_stored(name, section=section, verify=True))
                assert got.shape == t.shape and (got == truth(t)).all(), (case, section, name)


def verifies_whole_checkpoints():
    for case in CASES:
        with reader.open(work / case) as c:
            c.verify()


def reads_slices_and_experts():
    for case in ("plain", "packed"):
        with reader.open(work / case) as c:
            for name in c.names():
                t, _ = c.find(name)
                whole = truth(t)
                index = tuple(slice(n // 3, n // 3 + max(1, n // 2)) for n in t.shape)
                for verify in (False, True):
                    assert (bits_of(c.read_stored(name, index, verify=verify)) == whole[index]).all(), name
                assert (bits_of(c.read_stored(name, -1)) == whole[-1]).all(), name
                if t.stack:
                    head, tail = name.split(".mlp.experts.")
                    one = c.read_stored("%s.mlp.experts.3.%s" % (head, tail), (slice(1, 9), 2))
                    assert (bits_of(one) == whole[3, 1:9, 2]).all(), name


def bf16_reads_as_float32():
    with reader.open(work / "plain") as c:
        t, _ = c.find("model.embed_tokens.weight")
        want = (truth(t).astype(np.uint32) << 16).view(np.float32)
        got = c.read("model.embed_tokens.weight")
        assert got.dtype == np.float32 and (got == want).all()


def dequantises():
    for case, suffix, rows, cols in (("mxfp8", "_scale", 1, 32), ("fp8", "_scale_inv", 128, 128)):
        with reader.open(work / case) as c:
            some = [n for n in c.names() if n + suffix in c.names()]
            assert len(some) > 20
            for name in some[::7]:
                q, _ = c.find(name)
                s, _ = c.find(name + suffix)
                code = truth(q).astype(int)
                e, m, sign = code >> 3 & 15, code & 7, np.where(code & 128, -1.0, 1.0)
                value = sign * np.where(e == 0, m / 8 * 2.0 ** -6, (1 + m / 8) * 2.0 ** (e - 7))
                value[(code & 127) == 127] = np.nan
                scale = truth(s)
                scale = 2.0 ** (scale.astype(float) - 127) if cols == 32 else scale.view(np.float32).astype(float)
                i = np.indices(q.shape)
                pick = tuple(i[:-2]) + (i[-2] // rows, i[-1] // cols)
                want = (value * scale[pick]).astype(np.float32)
                assert np.array_equal(c.read(name, dequantise=True), want, equal_nan=True), name


def finds_a_flipped_bit_in_data():
    for case, section, name in (("plain", "weight", "model.embed_tokens.weight"),
                                ("packed", "weight", "model.embed_tokens.weight")):
        damaged = work / "damaged"
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(work / case, damaged)
        with reader.open(damaged) as c:
            t, _ = c.find(name, section)
            p = t.pieces[0]
            at = p.offset if p.plain else int(c._table("chunks")[p.first_chunk]["offset"])
            file = damaged / c.shards[p.shard][0]
        data = bytearray(file.read_bytes())
        data[at + 5] ^= 1
        file.write_bytes(data)
        with reader.open(damaged) as c:
            try:
                c.read(name, verify=True)
            except reader.CheckpointError as e:
                assert name in str(e), e
            else:
                raise AssertionError("not found")


def finds_damage_in_the_index():
    for at in (20, 600):
        damaged = work / "damaged"
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(work / "plain", damaged)
        data = bytearray((damaged / "index.h5").read_bytes())
        data[at if at < 500 else -at] ^= 1
        (damaged / "index.h5").write_bytes(data)
        try:
            with reader.open(damaged) as c:
                c.verify()
        except reader.CheckpointError:
            continue
        raise AssertionError("byte %d" % at)


def lists_and_prints():
    tool = [sys.executable, ROOT / "python/glm_checkpoint.py", work / "plain"]
    out = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
    assert "weight\tmodel.norm.weight\tBF16\t160\n" in out
    subprocess.run(tool + ["model.norm.weight"], check=True, stdout=subprocess.DEVNULL)


def says_what_is_wrong_in_one_line():
    program = [sys.executable, ROOT / "python/glm_checkpoint.py"]
    for words, status, part in (([], 2, "usage"), ([work / "absent"], 4, "absent"),
                                ([work / "plain", "model.nothing"], 3, "no tensor 'model.nothing'"),
                                ([work], 4, "index.h5")):
        r = subprocess.run(program + words, capture_output=True, text=True)
        assert r.returncode == status and part in r.stderr, (words, r)
        assert r.stderr.count("\n") == 1 and r.stdout == "", (words, r)


def without_numpy_it_says_so():
    """-I -S: an interpreter that sees the standard library alone."""
    bare = [sys.executable, "-I", "-S"]
    r = subprocess.run(bare + [ROOT / "python/glm_checkpoint.py", work / "plain"],
                       capture_output=True, text=True)
    assert r.returncode == 4 and r.stderr.count("\n") == 1, r
    assert "needs numpy" in r.stderr and sys.executable in r.stderr, r
    code = "import sys; sys.path.insert(0, %r); import glm_checkpoint" % str(ROOT / "python")
    r = subprocess.run(bare + ["-c", code], capture_output=True, text=True)
    assert r.returncode == 1 and "ImportError: glm_checkpoint.py needs numpy" in r.stderr, r


# ---- stock HDF5 tools ---------------------------------------------------------------------------

def h5py_sees_whole_tensors():
    """B-94, B-89: virtual views over every encoding and topology, through the installed filter."""
    for case in CASES:
        with reader.open(work / case) as c, h5py.File(work / case / "index.h5", "r") as f:
            seen = 0
            for (section, name), t in c.tensors.items():
                path = section + "/" + name
                if t.derived or 0 in t.shape:
                    assert path not in f, path
                    continue
                d = f[path]
                want = truth(t)
                shape = t.shape or (1,)
                assert d.shape == shape and d.attrs["dtype"] in (t.dtype, t.dtype.encode()), path
                got = d[()]
                if t.dtype == "BF16":
                    want = (want.astype(np.uint32) << 16).view(np.float32)
                    assert (got.astype(np.float32) == want).all(), path
                elif t.dtype == "C64":
                    assert (got.view("<u8").reshape(shape) == want).all(), path
                else:
                    assert (bits_of(got) == want.reshape(shape)).all(), (case, path)
                seen += 1
            assert seen > 50


def h5py_sees_side_files_and_tables():
    with reader.open(work / "packed") as c, h5py.File(work / "packed" / "index.h5", "r") as f:
        assert f["files/config.json"][()].tobytes() == c.file("config.json")
        assert f["files/extra/a name, 100% odd"][()].tobytes() == b"bytes\n"
        assert f["source/model.safetensors"].shape == (10,)
        assert f["manifest"][()].tobytes() == c._part("manifest")
        assert f["tiles"][()].tobytes() == c._part("tiles")
        assert (f["chunks"]["offset"] == c._table("chunks")["offset"]).all()


def b88_a_missing_or_cut_shard_shows_as_nan():
    for how in ("missing", "cut"):
        damaged = work / "damaged"
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(work / "training", damaged)
        with reader.open(damaged) as c:
            t, _ = c.find("model.embed_tokens.weight", "master")
            file = damaged / c.shards[t.pieces[0].shard][0]
            first = t.pieces[0].n[1]
        if how == "missing":
            file.unlink()
        else:
            os.truncate(file, 1000)
        with h5py.File(damaged / "index.h5", "r") as f:
            try:
                d = f["master/model.embed_tokens.weight"][()]
            except OSError as e:  # HDF5 2.0 refuses a cut source, which is better still
                assert how == "cut" and "truncated" in str(e), e
                continue
            assert np.isnan(d[:first]).all() and not np.isnan(d[first:]).any(), how


def a_piece_says_where_it_lies():
    with reader.open(work / "plain") as c:
        t, _ = c.find("model.embed_tokens.weight")
        for p in t.pieces:
            with h5py.File(work / "plain" / c.shards[p.shard][0], "r") as f:
                d = f["weight/model.embed_tokens.weight"]
                assert tuple(d.attrs["offset"]) == p.lo[1:] and tuple(d.attrs["shape"]) == t.shape
                assert d.id.get_offset() == p.offset and d.shape == p.n[1:]


def h5dump_shows_values():
    out = subprocess.run(["h5dump", "-d", "/weight/model.norm.weight", "-s", "0", "-c", "2",
                          work / "packed" / "index.h5"], capture_output=True, text=True, check=True).stdout
    with reader.open(work / "packed") as c:
        a, b = c.read("model.norm.weight")[:2]
    line = [x for x in out.splitlines() if "(0):" in x][0]
    x, y = (float(v) for v in line.split(":")[1].split(","))
    assert abs(x - a) <= 1e-5 * abs(a) and abs(y - b) <= 1e-5 * abs(b), (line, a, b)


try:
    for f in (reads_every_element, verifies_whole_checkpoints, reads_slices_and_experts,
              bf16_reads_as_float32, dequantises, finds_a_flipped_bit_in_data,
              finds_damage_in_the_index, lists_and_prints, says_what_is_wrong_in_one_line,
              without_numpy_it_says_so):
        test(f)
    for f in (h5py_sees_whole_tensors, h5py_sees_side_files_and_tables,
              b88_a_missing_or_cut_shard_shows_as_nan, a_piece_says_where_it_lies):
        if h5py is None:
            print("SKIP %s%s: no h5py" % (WHO, f.__name__))
        else:
            test(f)
    if shutil.which("h5dump"):
        test(h5dump_shows_values)
    else:
        print("SKIP %sh5dump_shows_values: not installed" % WHO)
finally:
    shutil.rmtree(work)
sys.exit(1 if failed else 0)
