#!/usr/bin/env python3
"""One model through many topologies, read back element by element by h5py.

A model with GLM-5.2's proportions, each element a 64-bit mix of (name, index), is imported and
resharded: TP1 -> TP8/PP13/EP8 -> TP2/PP2 -> TP1, TP1 -> TP2 -> TP4 -> PP2 -> TP1 (B-13),
TP4.EP2.ETP1 and back (B-04), interleaved stages, plain and compressed, weights and training states.
The oracle is this file alone: it reads safetensors headers and makes the other sections' elements
from the formulas in tests/support/trainstate.h. Prints "ok NAME" or "FAIL NAME: why".

    test_topologies.py --check CKPT SRC     only the comparison (for another Python's h5py)
"""
import hashlib
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

import h5py
import numpy as np

try:
    import hdf5plugin  # noqa: F401  (its zstd serves h5py)
except ImportError:
    pass

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BIN", ROOT / "build/release/bin"))
TOOLS = pathlib.Path(os.environ.get("TOOLS", ROOT / "build/release/tools"))
DEBIAN = "/usr/bin/python3"
FAILED = []


def check(name, good, why=""):
    print("ok " + name if good else f"FAIL {name}: {why}", flush=True)
    if not good:
        FAILED.append(name)


# ---- the oracle --------------------------------------------------------------------------------

def source_tensors(src):
    """Name -> bytes of every tensor, experts apart, by the safetensors format alone."""
    out = {}
    for path in sorted(pathlib.Path(src).glob("*.safetensors")):
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                a, b = t["data_offsets"]
                out[name] = (t["dtype"], t["shape"], data[8 + size + a:8 + size + b])
    return out


def logical(source, name, shape):
    """The bytes of a logical tensor: a stack is its experts one after the other, by number."""
    if name in source:
        return source[name][2]
    return b"".join(source[name.replace(".experts.", f".experts.{e}.")][2]
                    for e in range(shape[0]))


def mix(x):
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9e3779b97f4a7c15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        return x ^ (x >> np.uint64(31))


def stream(path, n):
    h = 0xcbf29ce484222325
    for c in path.encode():
        h = (h ^ c) * 0x100000001b3 & 0xffffffffffffffff
    with np.errstate(over="ignore"):
        return mix(np.uint64(h) + np.arange(n, dtype=np.uint64))


def made(section, name, dtype, shape, weight):
    """The bytes that trainstate gives an element, see tests/support/trainstate.h."""
    n = int(np.prod(shape, dtype=np.int64))
    x = stream(f"{section}/{name}", n)
    if section == "master":
        if weight[0] == "F32":
            return weight[1]
        w = np.frombuffer(weight[1], "<u2").astype(np.uint32) << 16
        step = (x & np.uint64(0x7fff)).astype(np.uint32)
        down = ((x & np.uint64(0x8000)) != 0) & ((w & 0x7fffffff) != 0)
        return np.where(down, w - step, w + step).astype("<u4").tobytes()
    if dtype == "F32":
        mask, base = {"opt/m": (0x807fffff, 0x3c000000), "opt/v": (0x007fffff, 0x38000000),
                      "opt/momentum": (0x807fffff, 0x3d000000)}[section]
        return (x & np.uint64(mask) | np.uint64(base)).astype("<u4").tobytes()
    if dtype == "F8_E4M3":
        return (x & np.uint64(0x8f) | np.uint64(0x30)).astype("u1").tobytes()
    if dtype == "F64":
        return (x & np.uint64(0x800fffffffffffff) | np.uint64(0x3fe0000000000000)).tobytes()
    if dtype == "U8":
        return (x & np.uint64(0xff)).astype("u1").tobytes()
    return (x >> np.uint64(8)).tobytes()


# ---- a checkpoint as h5py sees it --------------------------------------------------------------

class Manifest:
    def __init__(self, ckpt):
        with h5py.File(ckpt / "index.h5", "r") as f:
            text = f["manifest"][()].tobytes().decode()
            self.tiles = f["tiles"][()]
            self.chunks = f["chunks"][()] if "chunks" in f and f["chunks"].size else []
        self.tensors, self.pieces, self.shards = [], [], []
        for line in text.splitlines():
            w = line.split("\t")
            if w[0] == "tensor":
                self.tensors.append({"section": w[1], "name": w[2], "dtype": w[3],
                                     "shape": [int(d) for d in w[4].split(",")] if w[4] != "-"
                                     else [], "extra": w[7:]})
            elif w[0] == "piece":
                lists = [[int(d) for d in v.split(",")] for v in w[2:4]]
                self.pieces.append({"tensor": len(self.tensors) - 1, "shard": int(w[1]),
                                    "at": lists[0], "n": lists[1], "kind": w[4],
                                    "rest": [int(v) for v in w[5:]]})
            elif w[0] == "shard":
                self.shards.append(w[2])
            elif w[0] == "fingerprint":
                self.fingerprint = w[1]


def raw(dataset):
    """A dataset's bytes as stored, without any conversion of its type."""
    size = dataset.id.get_type().get_size()
    out = np.empty(dataset.shape + (size,), "u1")
    if out.size:
        dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, out, mtype=dataset.id.get_type())
    return out.tobytes()


def compare(ckpt, src):
    """The first difference between the virtual view and the oracle, or None."""
    m, source = Manifest(ckpt), source_tensors(src)
    seen = set()
    with h5py.File(ckpt / "index.h5", "r") as f:
        for t in m.tensors:
            path = f"{t['section']}/{t['name']}"
            base = t["name"]
            if t["section"] == "weight":
                want = logical(source, base, t["shape"])
                seen.update([base] if base in source else
                            [base.replace(".experts.", f".experts.{e}.")
                             for e in range(t["shape"][0])])
            else:
                weight = None
                if t["section"] == "master":
                    one = base if base in source else base.replace(".experts.", ".experts.0.")
                    weight = (source[one][0], logical(source, base, t["shape"]))
                want = made(t["section"], base, t["dtype"], t["shape"], weight)
            if "derived master" in t["extra"]:
                if path in f:
                    return f"{path}: derived, but there is a dataset"
                u = np.frombuffer(made("master", base, "F32", t["shape"],
                                       (t["dtype"], want)), "<u4").astype(np.uint64)
                rounded = (u + 0x7fff + (u >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
                if rounded.astype("<u2").tobytes() != want:
                    return f"{path}: not its master rounded to nearest even"
                continue
            if raw(f[path]) != want:
                return f"{path}: other elements"
            if t["dtype"] == "BF16" and "norm" in base:  # and as numbers, not only as bits
                values = np.asarray(f[path][()], "f4").view("u4") >> 16
                if values.astype("<u2").tobytes() != want:
                    return f"{path}: h5py shows other values"
    missing = set(source) - seen
    return f"{sorted(missing)[0]} is not in the checkpoint" if missing else None


# ---- running -----------------------------------------------------------------------------------

def config():
    """GLM-5.2's proportions at a thirty-second, 23 layers of which 13 compute an index set."""
    c = json.loads((ROOT / "fixtures/configs/t1.json").read_text())
    layers = 23
    full = {0, 1, *range(2, layers, 2)}
    c.update(hidden_size=192, q_lora_rank=64, kv_lora_rank=16, num_attention_heads=64,
             num_key_value_heads=64, qk_nope_head_dim=6, qk_rope_head_dim=2, qk_head_dim=8,
             v_head_dim=8, index_n_heads=32, index_head_dim=4, intermediate_size=384,
             moe_intermediate_size=64, n_routed_experts=8, vocab_size=4840,
             num_hidden_layers=layers, first_k_dense_replace=3, index_topk_freq=2,
             indexer_types=["full" if i in full else "shared" for i in range(layers)],
             mlp_layer_types=["dense" if i < 3 else "sparse" for i in range(layers)])
    return c


def command(*words):
    r = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if r.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: {r.stderr.strip()}")
    return r.stdout


def reshard(a, b, topology="", *more):
    words = []
    for part in filter(None, topology.split(",")):
        axis = part.rstrip("0123456789")
        words += ["--" + axis, part[len(axis):]]
    command(BIN / "glm-reshard", a, b, "--quiet", *words, *more)
    return b


def same_files(a, b, but=()):
    names = {p.name for p in a.iterdir()} | {p.name for p in b.iterdir()}
    return [n for n in sorted(names - set(but))
            if not ((a / n).exists() and (b / n).exists()
                    and (a / n).read_bytes() == (b / n).read_bytes())]


def chain(name, work, start, src, topologies):
    """Each step keeps the fingerprint and every element; the last one gives the first's files."""
    m = Manifest(start)
    at = start
    for i, topology in enumerate(topologies):
        to = reshard(at, work / f"{name}-{i}", topology)
        n = Manifest(to)
        bad = compare(to, src)
        step = f"{name}: {topology}"
        check(step, n.fingerprint == m.fingerprint and bad is None,
              bad or f"fingerprint {n.fingerprint}, expected {m.fingerprint}")
        if at != start:
            shutil.rmtree(at)
        at = to
    bad = same_files(start, at, ["index.h5"])
    check(f"{name}: back_at_the_start_the_shards_are_the_same", not bad, f"differ: {bad}")
    shutil.rmtree(at)


def geometry(ckpt):
    """That the case is what it is meant to be: cuts inside a tile, cells that own nothing."""
    m = Manifest(ckpt)
    # q_b is [512,64]: TP8 cuts every 64 rows, a tile has 128, so every other rank owns none
    q = [p for p in m.pieces if m.tensors[p["tensor"]]["name"].endswith("layers.0.self_attn."
         "q_b_proj.weight")]
    check("a_cut_falls_inside_a_tile", len(q) == 4 and all(p["n"][0] == 128 for p in q), q)
    cells = {m.shards[p["shard"]][6:15] for p in q}
    check("cells_that_own_nothing_of_a_tensor", len(cells) == 4, cells)


def frames(work, plain):
    """zstd to zstd: what is stored for a tile is what was stored for it."""
    a = reshard(plain, work / "za", "tp2,pp2,ep2", "--compress", "zstd")
    b = reshard(a, work / "zb", "tp8,pp4,ep4")
    rows = []
    for ckpt in (a, b):
        m = Manifest(ckpt)
        stored = {}
        for p in m.pieces:
            if p["kind"] != "zstd":
                continue
            t = m.tensors[p["tensor"]]
            for k in range(p["rest"][0], p["rest"][0] + p["rest"][1]):
                c = m.chunks[k]
                with open(ckpt / m.shards[p["shard"]], "rb") as f:
                    f.seek(int(c[0]))
                    data = f.read(int(c[1]))
                if hashlib.sha256(data).digest() != bytes(c[3]):
                    check("chunk_digests_are_of_the_stored_bytes", False, t["name"])
                    return a
                stored.setdefault((t["section"], t["name"]), []).append(
                    (bytes(c[3]), int(c[1]), int(c[2])))
        rows.append({k: sorted(v) for k, v in stored.items()})
    differ = [k for k in rows[0] if rows[0][k] != rows[1].get(k)]
    check("frames_are_the_same_where_tiles_stay_whole", len(rows[0]) > 100 and not differ,
          f"{len(differ)} tensors, {differ[:2]}")
    back = reshard(b, work / "zn", "", "--compress", "none")
    bad = same_files(plain, back, ["index.h5"])
    check("compress_none_gives_the_plain_shards_back", not bad, f"differ: {bad}")
    shutil.rmtree(b)
    shutil.rmtree(back)
    return a


def twice(work, start):
    """B-97: what is laid out already is laid out the same again."""
    a = reshard(start, work / "ta", "tp4,pp2,ep4,etp2")
    b = reshard(start, work / "tb", "tp4,pp2,ep4,etp2")
    c = reshard(a, work / "tc", "tp4,pp2,ep4,etp2")
    check("B-97_twice_gives_identical_bytes", not same_files(a, b), same_files(a, b))
    bad = same_files(a, c, ["index.h5"])
    check("B-97_again_changes_nothing", not bad and Manifest(a).fingerprint ==
          Manifest(c).fingerprint, bad)
    for d in (a, b, c):
        shutil.rmtree(d)


def debian(ckpt, src, name):
    plugin = BIN.parent / "plugin"
    if subprocess.run([DEBIAN, "-c", "import h5py"], capture_output=True).returncode != 0:
        print(f"SKIP {name}: {DEBIAN} has no h5py")
        return
    r = subprocess.run([DEBIAN, __file__, "--check", ckpt, src], capture_output=True, text=True,
                       env={**os.environ, "HDF5_PLUGIN_PATH": str(plugin)})
    check(name, r.returncode == 0, (r.stdout + r.stderr).strip()[-300:])


def main():
    with tempfile.TemporaryDirectory(prefix="glm-topologies-") as folder:
        work = pathlib.Path(folder)
        src, plain = work / "src", work / "plain"
        (work / "config.json").write_text(json.dumps(config(), indent=2) + "\n")
        command(TOOLS / "toy", "--config", work / "config.json", "--files", 3, "--out", src)
        command(BIN / "glm-import", src, plain, "--quiet")
        bad = compare(plain, src)
        check("import", bad is None, bad)
        wide = reshard(plain, work / "wide", "tp8,pp13,ep8")
        geometry(wide)
        debian(wide, src, "Debian's_h5py_reads_plain")
        shutil.rmtree(wide)
        chain("TP1_to_TP8.PP13.EP8_and_back", work, plain, src,
              ["tp8,pp13,ep8", "tp2,pp2", "tp1"])
        chain("B-13_chain", work, plain, src, ["tp2", "tp4", "pp2", "tp1"])
        chain("B-04_TP4.EP2.ETP1", work, plain, src, ["tp4,ep2,etp1", "tp1"])
        chain("interleaved_stages", work, plain, src, ["pp2,vpp2,tp2", "pp3,vpp3,ep2,etp2", "tp1"])
        twice(work, plain)
        packed = frames(work, plain)
        debian(packed, src, "Debian's_h5py_reads_zstd")
        chain("zstd_chain", work, packed, src, ["tp8,pp13,ep8", "etp4", "tp2,pp2,ep2"])
        shutil.rmtree(packed)
        shutil.rmtree(plain)

        t1, t1_ckpt = work / "t1", work / "t1-ckpt"
        command(TOOLS / "toy", "--config", ROOT / "fixtures/configs/t1.json", "--files", 4,
                "--out", t1)
        command(BIN / "glm-import", t1, t1_ckpt, "--quiet")
        for options in ([], ["--derived"], ["--zstd"], ["--zstd", "--derived", "--codes"],
                        ["--codes", "--shard-size", "400000"]):
            name = "T2" + "".join(o for o in options if o[0] == "-").replace("--", "_")
            state = work / "state"
            command(TOOLS / "trainstate", t1_ckpt, state, *options)
            bad = compare(state, t1)
            check(f"{name}: made", bad is None, bad)
            codes = "_B-14" if "--codes" in options else ""
            more = options[-2:] if "--shard-size" in options else []
            if more:  # the same volumes need the same limit
                back = reshard(reshard(state, work / "s1", "tp4,pp2,ep4", *more), work / "s2",
                               "tp1", *more)
                bad = same_files(state, back, ["index.h5"]) or compare(back, t1)
                check(f"{name}{codes}: small_volumes", not bad, bad)
                shutil.rmtree(back)
            else:
                chain(f"{name}{codes}", work, state, t1,
                      ["tp2,pp2,ep2", "tp8,pp3,ep4,etp1", "tp4,ep2,etp1", "tp1"])
            if "--derived" in options:
                command(BIN / "glm-export", state, work / "hf", "--quiet")
                got, want = source_tensors(work / "hf"), source_tensors(t1)
                check(f"{name}: export_of_derived_weights_is_the_source", got == want,
                      sorted(k for k in want if got.get(k) != want[k])[:2])
                shutil.rmtree(work / "hf")
            shutil.rmtree(state)
    return 1 if FAILED else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        difference = compare(pathlib.Path(sys.argv[2]), sys.argv[3])
        print(difference or "equal")
        sys.exit(1 if difference else 0)
    sys.exit(main())
