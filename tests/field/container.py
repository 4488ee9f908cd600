"""K, L: HDF5's own dangers. Our commands never let the library read what they have not proven."""
import json
import os
import re
import shutil

import h5py
import hdf5plugin  # noqa: F401
import ml_dtypes
import numpy as np
from disk import traced
from files import header_with
from harness import TOOLS, Skip, expect, report, run, same, tree, works

SECRET = "/etc/hostname"
PLUGIN = TOOLS.parent / "plugin"


def hostile_files(p):
    """HDF5 files that make the library read another file."""
    def external(f):
        f.create_dataset("x", (16,), "u1", external=[(SECRET, 0, 16)])

    def link(f):
        f["x"] = h5py.ExternalLink(SECRET, "/")

    def soft(f):
        f["x"] = h5py.SoftLink(SECRET)

    def virtual(f):
        layout = h5py.VirtualLayout((16,), "u1")
        layout[:] = h5py.VirtualSource(SECRET, "x", (16,))
        f.create_virtual_dataset("x", layout)

    for make in (external, link, soft, virtual):
        path = p.new(make.__name__)
        with h5py.File(path, "w", userblock_size=4096) as f:
            make(f)
        yield make.__name__, path


@report("B-73")
def no_file_outside_is_ever_opened(p):
    whole = p.checkpoint(p.toy())
    block = (whole / "index.h5").read_bytes()[:4096]
    shard = next(f.name for f in whole.iterdir() if f.name.startswith("shard"))
    for kind, path in hostile_files(p):
        data = path.read_bytes()
        for name, content in (("index.h5", data), ("index.h5", block + data[4096:]), (shard, data)):
            ckpt = p.new("ckpt")
            shutil.copytree(whole, ckpt)
            (ckpt / name).write_bytes(content)
            for words in (("glm-verify", "integrity", ckpt), ("glm-inspect", "--tree", ckpt),
                          ("glm-export", ckpt, p.new("out")), ("glm-reshard", ckpt, p.new("out"))):
                r, lines = traced(p, *words, calls="open,openat")
                expect(r.status in (1, 3) or (name == shard and words[0] == "glm-inspect"),
                       f"{kind} as {name}: {r}")
                expect(not any(SECRET in x for x in lines), f"{kind}: {words[0]} opened {SECRET}")
            shutil.rmtree(ckpt)


@report("B-74")
def a_shape_bomb_is_refused_by_its_size(p):
    for shape, size in (([2**40, 1], 1024), ([2**20, 2**20, 2**20], 64)):
        entry = {"dtype": "BF16", "shape": shape, "data_offsets": [0, size]}
        p.refused("glm-import", header_with(p, json.dumps({"x": entry})),
                  "model-00003-of-00004.safetensors")
    config = p.model()
    config.config(vocab_size=2**40)
    p.refused("glm-import", config.folder)


@report("B-86")
def locks_that_fail_do_not_matter(p):
    source = p.toy()
    wanted = tree(p.checkpoint(source))
    for error in ("ENOLCK", "EAGAIN", "524"):
        out, back = p.new("ckpt"), p.new("hf")
        for words in (("glm-import", "--quiet", source, out),
                      ("glm-export", "--quiet", "--same-files", out, back),
                      ("glm-verify", "integrity", out), ("glm-inspect", out)):
            r, _ = traced(p, *words, calls="flock,fcntl",
                          inject=(f"flock:error={error}",))
            same(r.status, 0, f"flock fails with {error}: {r}")
        same(tree(out), wanted, f"the checkpoint, flock {error}")
        same(tree(back), tree(source), f"the export, flock {error}")


@report("B-88")
def a_shard_that_is_not_right_is_no_fill_value(p):
    whole = p.checkpoint(p.toy(), "--tp", "2")
    shard = next(f.name for f in sorted(whole.iterdir()) if f.name.endswith("-t001-0000.h5"))
    other = p.checkpoint(p.toy("--dtype", "f32"), "--tp", "2")

    def cut(path):
        os.truncate(path, path.stat().st_size // 2)

    def retyped(path):
        shutil.copy(other / shard, path)

    def resized(path):
        with open(path, "ab") as f:
            f.write(b"\0" * 4096)

    for change in (os.unlink, cut, retyped, resized):
        ckpt = p.new("ckpt")
        shutil.copytree(whole, ckpt)
        change(ckpt / shard)
        r = run("glm-verify", "integrity", "--quick", ckpt)
        expect(r.status == 1 and shard in r.out + r.err, f"{change.__name__}: {r.out} {r}")
        p.refused("glm-export", ckpt, shard)
        p.refused("glm-reshard", ckpt, shard)
        if change is os.unlink:
            with h5py.File(ckpt / "index.h5") as f:
                x = f["weight/model.embed_tokens.weight"][()].astype(np.float32)
            rows = np.isnan(x).all(axis=1)
            expect(rows.any(), "no NaN where the shard is absent")
            expect(not (x[rows] == 0).any() and not (x == 0).all(axis=1).any(), "zeros instead")


@report("B-89")
def no_command_needs_a_filter_plugin(p):
    env = {"HDF5_PLUGIN_PATH": ""}
    ckpt, back, again = p.new("ckpt"), p.new("hf"), p.new("ckpt")
    name = "model.layers.0.mlp.gate_proj.weight"
    for words in (("glm-import", "--quiet", "--compress", "zstd", p.toy("--gauss"), ckpt),
                  ("glm-verify", "integrity", ckpt), ("glm-inspect", ckpt, name),
                  ("glm-reshard", "--quiet", "--tp", "2", ckpt, again),
                  ("glm-export", "--quiet", "--same-files", again, back)):
        works(*words, env=env)
    same(tree(back), tree(p.toy("--gauss")), "the export")
    if not shutil.which("h5dump"):
        raise Skip("h5dump is not installed")
    words = ("h5dump", "-d", f"/weight/{name}", "-c", "1,4", ckpt / "index.h5")
    r = run(*words, env={"HDF5_PLUGIN_PATH": str(PLUGIN)})
    found = re.search(r"\(0,0\): ([^\n]*)", r.out)
    with h5py.File(ckpt / "index.h5") as f:
        wanted = f[f"weight/{name}"][0, :4].astype(np.float32)
    expect(found, f"h5dump shows nothing: {r.out[:400]} {r}")
    shown = np.array([float(x) for x in found.group(1).split(",")], np.float32)
    expect(np.allclose(shown, wanted, rtol=1e-4), f"h5dump shows {shown}, not {wanted}")


@report("B-91")
def what_no_attribute_can_hold_is_stored(p):
    m = p.model()
    m.config(filler=[f"model.layers.{i}.mlp" for i in range(10_000)])
    expect((m.folder / "config.json").stat().st_size > 200_000, "the fixture is too small")
    (m.folder / "README.md").write_bytes(os.urandom(1 << 20))
    ckpt, back = p.checkpoint(m.folder), p.new("hf")
    works("glm-export", "--quiet", "--same-files", ckpt, back)
    same(tree(back), tree(m.folder), "the export")
    with h5py.File(ckpt / "index.h5") as f:
        for name in ("config.json", "README.md"):
            same(f[f"files/{name}"][()].tobytes(), (m.folder / name).read_bytes(), name)


def packed_kinds(ckpt):
    """What chunks the shards hold: packed, raw (stored past the filters), partial (the last)."""
    kinds = set()

    def look(_, d):
        if not isinstance(d, h5py.Dataset) or not d.chunks:
            return
        if any(n % c for n, c in zip(d.shape, d.chunks)):
            kinds.add("partial")
        for i in range(d.id.get_num_chunks()):
            kinds.add("raw" if d.id.get_chunk_info(i).filter_mask else "packed")

    for path in ckpt.glob("shard-*.h5"):
        with h5py.File(path) as f:
            f.visititems(look)
    return kinds


@report("B-94")
def stock_readers_read_what_we_packed(p):
    for options in ((), ("--fp8", "16,16"), ("--mx", "e8m0"), ("--gauss",), ("--dtype", "f32")):
        m = p.model(*options)
        ckpt = p.checkpoint(m.folder, "--compress", "zstd", "--tp", "4", "--ep", "2")
        seen = 0
        with h5py.File(ckpt / "index.h5") as f:
            for name, t in m.tensors.items():
                e = re.match(r"(.*\.mlp\.experts)\.(\d+)(\..*)", name)
                d = f[f"weight/{e.group(1)}{e.group(3)}" if e else f"weight/{name}"]
                x = d[int(e.group(2))] if e else d[()]
                if t.dtype == "BF16":
                    # Exact values: every BF16 number is a number of the wider type.
                    wanted = np.frombuffer(t.data, ml_dtypes.bfloat16).astype(np.float32)
                    same(np.asarray(x, np.float32).reshape(-1).tobytes(), wanted.tobytes(), name)
                else:
                    same(x.tobytes(), t.data, name)
                seen += 1
        same(seen, len(m.tensors), "tensors compared")
        kinds = packed_kinds(ckpt)
        expect("partial" in kinds, f"no last chunk that is partial in {options}")
        expect(("raw" if not options else "packed") in kinds, f"chunks of {options}: {kinds}")
