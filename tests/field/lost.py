"""A: tensors lost or invented. E: layouts. What goes in comes out, under the same name."""
import hashlib
import json

import numpy as np
from harness import (TOOLS, Tensor, answer, equal, equal_tensors, expect, report, run, same,
                     works)

EMBED, HEAD, EH = "model.embed_tokens.weight", "lm_head.weight", "model.layers.5.eh_proj.weight"
EXPERTS = "model.layers.{}.mlp.experts."


@report("B-01")
def without_mtp_only_the_mtp_names_are_absent(p):
    m = p.model()
    for name in (EMBED, HEAD, EH):  # all in one file, as in the report
        m.files["model-00003-of-00004.safetensors"][name] = m.take(name)
    m.save()
    wanted = {n: t for n, t in m.tensors.items() if ".layers.5." not in n}
    found = p.exported(p.checkpoint(m.folder, "--no-mtp"), "--max-shard-size", "3MB")
    equal_tensors(found.tensors, wanted)
    same(set(found.index()["weight_map"]), set(wanted), "names in the index")
    m.drop_like(".layers.5.")
    m.save()
    p.refused("glm-import", m.folder, "missing", "model.layers.5.", "--no-mtp")
    equal_tensors(p.exported(p.checkpoint(m.folder, "--no-mtp")).tensors, wanted)


def stack(m, layer, numbers=range(12)):
    for projection in ("gate_proj", "up_proj", "down_proj"):
        name = EXPERTS.format(layer)
        parts = [m.take(f"{name}{e}.{projection}.weight") for e in range(12)]
        parts = [parts[e] for e in numbers]
        m.files["model-00001-of-00004.safetensors"][f"{name}{projection}.weight"] = Tensor(
            parts[0].dtype, [len(parts), *parts[0].shape], b"".join(t.data for t in parts))


@report("B-02")
def stacked_experts_are_split_or_refused(p):
    m = p.model()
    wanted = m.tensors
    stack(m, 2)
    r = answer("glm-import", m.save(), p.new("ckpt"))
    same((r["hf_tensors"], r["read_bytes"], r["written_bytes"]),
         (len(wanted), *[sum(len(t.data) for t in wanted.values())] * 2), "the report's counts")
    equal_tensors(p.exported(p.checkpoint(m.folder)).tensors, wanted)
    short = p.model()
    stack(short, 2, range(11))
    p.refused("glm-import", short.save(), "misshapen", "experts.gate_proj.weight", "[11,80,256]",
              "[12,80,256]")


def around(p, ckpt, *ways):
    """Reshards one way after the other; each step keeps the fingerprint. The last one."""
    wanted = p.fingerprint(ckpt)
    for way in ways:
        out = p.new("ckpt")
        r = answer("glm-reshard", *way.split(), ckpt, out)
        same(r["fingerprint"], wanted, f"fingerprint after {way}")
        same(p.fingerprint(out), wanted, f"fingerprint after {way}")
        ckpt = out
    return ckpt


@report("B-04")
def no_expert_slice_is_skipped_when_tp_exceeds_ep(p):
    first = p.checkpoint(p.toy())
    last = around(p, first, "--tp 4 --ep 2 --etp 1", "--tp 1")
    equal(first, last)
    equal_tensors(p.exported(last).tensors, p.model().tensors)


@report("B-05")
def the_mtp_layer_is_listed_and_comes_back(p):
    ckpt = p.checkpoint(p.toy())
    same(answer("glm-inspect", ckpt)["model"]["mtp_layers"], 1, "MTP layers")
    listed = works("glm-inspect", "--tree", ckpt).out
    part = listed[listed.index("\n    5  "):]
    wanted = {n: t for n, t in p.model().tensors.items() if ".layers.5." in n}
    expect(f"({len(wanted)} tensors" in part.splitlines()[1], f"layer 5 is {part.splitlines()[1]}")
    for word in ("eh_proj", "enorm", "hnorm", "shared_head", "indexer", "q_a_proj"):
        expect(word in part, f"layer 5 lacks {word}")
    equal_tensors({n: t for n, t in p.exported(ckpt).tensors.items() if ".layers.5." in n}, wanted)


@report("B-07")
def indexers_are_where_the_model_has_them(p):
    ckpt = p.checkpoint(p.toy())
    layers = {n.split(".")[2] for n in p.exported(ckpt).tensors if ".indexer." in n}
    same(layers, {"0", "1", "2", "5"}, "layers with an indexer")
    same(sum(line.strip().startswith("indexer ") for line in
             works("glm-inspect", "--tree", ckpt).out.splitlines()), 4, "indexers in the tree")
    m = p.model()
    m.rename(".indexer.", "layers.2.", "layers.3.")
    p.refused("glm-import", m.save(), "layer 2 lacks, layer 3 has one too many")


def mix(x):
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9e3779b97f4a7c15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        return x ^ (x >> np.uint64(31))


def small_values(section, name, first, count, dtype):
    """Elements of tests/support/smallckpt.h, computed a second time."""
    h = 0xcbf29ce484222325
    for c in f"{section}/{name}".encode():
        h = (h ^ c) * 0x100000001b3 % 2**64
    with np.errstate(over="ignore"):
        x = mix(np.uint64(h) + np.arange(first, first + count, dtype=np.uint64))
    if dtype == "BF16":
        return ((x & np.uint64(0x80FF)) | np.uint64(0x3C00)).astype("<u2")
    return ((x & np.uint64(0x807FFFFF)) | np.uint64(0x3C000000)).astype("<u4")


def rounded(master):
    """F32 bits to BF16 bits, to nearest even; finite values."""
    return ((master + np.uint32(0x7FFF) + (master >> np.uint32(16) & np.uint32(1)))
            >> np.uint32(16)).astype("<u2")


@report("B-08")
def a_training_checkpoint_exports_the_whole_model(p):
    ckpt = p.new("ckpt")
    works(TOOLS / "smallckpt", ckpt, "tp2,pp2,ep2", "training")
    found = p.exported(ckpt).tensors
    listed = works(TOOLS / "toy", "--config", "fixtures/configs/tiny-a.json", "--list",
                   cwd=str(TOOLS.parents[2])).out
    rows = [line.split("\t") for line in listed.splitlines()]
    same({n: (t.dtype, t.shape) for n, t in found.items()},
         {n: (d, [int(x) for x in s.split(",")]) for n, d, s in rows}, "names, types, shapes")
    for name, t in found.items():
        logical, first, count = name, 0, int(np.prod(t.shape))
        if ".mlp.experts." in name:
            head, tail = name.split(".experts.")
            e, rest = tail.split(".", 1)
            logical, first = f"{head}.experts.{rest}", int(e) * count
        bits = small_values("weight" if t.dtype == "F32" else "master", logical, first, count,
                            "F32")
        if t.dtype == "BF16":  # the exported weight is its master, rounded
            bits = rounded(bits)
        expect(bits.tobytes() == t.data, f"'{name}' has other values")


@report("B-10")
def a_tied_head_is_no_tensor(p):
    m = p.model()
    m.take(HEAD)
    m.save()
    p.refused("glm-import", m.folder, "missing", HEAD)
    m.config(tie_word_embeddings=True)
    ckpt = p.checkpoint(m.folder)
    out = p.exported(ckpt, "--max-shard-size", "3MB")
    equal_tensors(out.tensors, m.tensors)
    expect(HEAD not in out.index()["weight_map"], "the index has a head")
    expect(all(len(t.data) > 0 for t in out.tensors.values()), "a tensor without bytes")
    expect(f"\t{HEAD}\t" not in manifest(ckpt), "the manifest has a head")
    expect(json.loads((out.folder / "config.json").read_text())["tie_word_embeddings"] is True,
           "the tie is lost")


def manifest(ckpt):
    data = (ckpt / "index.h5").read_bytes()
    line = next(x for x in data[:4096].decode(errors="replace").splitlines()
                if x.startswith("manifest "))
    at, size = map(int, line.split()[1:3])
    return data[at:at + size].decode()


@report("B-11")
def side_files_come_back_each_with_a_digest(p):
    m = p.model()
    extra = {"tokenizer.model": b"\0\1\2" * 1000, "special_tokens_map.json": b"{}\n",
             "NOTICE": b"", "vocab.txt": b"a\r\nb", "README.md": "# caf\u00e9\n".encode()}
    for name, data in extra.items():
        (m.folder / name).write_bytes(data)
    sides = {f.name: f.read_bytes() for f in m.folder.iterdir() if "safetensors" not in f.name}
    expect(len(sides) >= 10, "too few side files in the fixture")
    ckpt = p.checkpoint(m.folder)
    listed = manifest(ckpt)
    for step in (ckpt, around(p, ckpt, "--tp 2 --pp 2")):
        out = p.exported(step).folder
        same({f.name: f.read_bytes() for f in out.iterdir() if "safetensors" not in f.name},
             sides, "side files")
    for name, data in sides.items():
        expect(f"file\t{name}\t{len(data)}\t{hashlib.sha256(data).hexdigest()}" in listed or
               f"file {name}\t{len(data)}\t{hashlib.sha256(data).hexdigest()}" in listed,
               f"{name} has no digest in the manifest")


# ---- E: layouts ---------------------------------------------------------------------------------

@report("B-44")
def fused_gate_up_is_gate_then_up(p):
    wanted = p.model().tensors
    fused = p.toy("--fused")
    for tp in ("2", "4"):
        ckpt = p.checkpoint(fused, "--tp", tp, "--etp", tp)
        equal_tensors(p.exported(ckpt).tensors, wanted, f"TP {tp}")
    whole = works("glm-export", "--quiet", "--same-files", ckpt, p.new("hf")).words[-1]
    works("diff", "-r", fused, whole)


@report("B-46")
def the_order_of_rows_is_that_of_the_source(p):
    """Each element is a mix of its name and place, so that any other order shows."""
    wanted = p.model().tensors
    parts = [t.data for n, t in wanted.items() if n.endswith(
        ("gate_proj.weight", "up_proj.weight", "q_b_proj.weight", "kv_b_proj.weight"))]
    expect(len(set(parts)) == len(parts) > 60, "the fixture repeats itself")
    equal_tensors(p.exported(p.checkpoint(p.toy(), "--tp", "8", "--ep", "4", "--etp", "2")).tensors,
                  wanted)


@report("B-47")
def uneven_stages_keep_every_layer_once(p):
    first = p.checkpoint(p.toy())
    for pp, layout, layers in (("4", "Et|t|t*3|mL", ["0-0", "1-1", "2-4", "5-5"]),
                               ("3", "Et|t*4|mL", ["0-0", "1-4", "5-5"])):
        out = p.new("ckpt")
        works("glm-reshard", "--quiet", "--pp", pp, "--layout", layout, first, out)
        same(answer("glm-inspect", out)["topology"]["layout"], layout, "stage table")
        rows = works("glm-inspect", "--topology", out).out.split("cell ")[0].splitlines()
        same([r.split()[2] for r in rows if r[:1].isdigit()], layers, "layers of the stages")
        again = around(p, out, "--tp 2 --pp 1")
        equal_tensors(p.exported(again).tensors, p.model().tensors, layout)
    for layout, count in (("Et|t|t*2|mL", "4 layers"), ("Et|t|t*4|mL", "6 layers")):
        p.refused("glm-reshard", first, layout, count, "the model has 5", status=2,
                  options=("--pp", "4", "--layout", layout))


@report("B-49")
def vocabulary_padding_never_reaches_the_disk(p):
    digests = set()
    for tp in ("1", "2", "8"):
        ckpt = p.checkpoint(p.toy(), "--tp", tp)
        shape = answer("glm-inspect", ckpt, EMBED)
        same(shape["shape"], [1000, 256], f"rows at TP {tp}")
        digests.add(shape["fingerprint"])
        out = p.exported(ckpt).tensors
        for name in (EMBED, HEAD):
            same(out[name], p.model().tensors[name], f"{name} at TP {tp}")
    same(len(digests), 1, "different digests of the embedding")


@report("B-50")
def an_embedding_of_another_size_is_refused(p):
    m = p.model()
    t = m.tensors[EMBED]
    m.files[m.file_of(EMBED)][EMBED] = Tensor(t.dtype, [2000, 256], t.data * 2)
    p.refused("glm-import", m.save(), "misshapen", EMBED, "[2000,256]", "[1000,256]",
              options=("--tp", "2"))


@report("B-52")
def the_mtp_head_is_never_taken_for_the_main_one(p):
    m = p.model()
    names = ("model.norm.weight", "model.layers.5.shared_head.norm.weight")
    expect(m.tensors[names[0]] != m.tensors[names[1]], "the fixture's norms are equal")
    out = p.exported(p.checkpoint(m.folder)).tensors
    for n in names:
        same(out[n], m.tensors[n], n)
    head = "model.layers.5.shared_head.head.weight"  # what this family does not have
    m.files["model-00002-of-00004.safetensors"][head] = Tensor("BF16", [1000, 256], b"\1\0" * 256000)
    p.refused("glm-import", m.save(), "extra", head)


@report("B-53")
def experts_are_in_the_order_of_numbers(p):
    m = p.model()
    for layer in range(1, 6):
        stack(m, layer)
    apart, stacked = p.checkpoint(p.toy()), p.checkpoint(m.save())
    same(p.fingerprint(stacked), p.fingerprint(apart), "fingerprint of stacked experts")
    equal_tensors(p.exported(stacked).tensors, p.model().tensors)
    wrong = p.model()
    stack(wrong, 3, sorted(range(12), key=str))  # 0, 1, 10, 11, 2, ...
    r = run("glm-verify", "diff", "--quiet", apart, p.checkpoint(wrong.save()))
    expect(r.status == 1 and "layers.3.mlp.experts" in r.out, f"the swap does not show: {r}")


@report("B-97")
def the_same_layout_twice_is_the_same(p):
    first = p.checkpoint(p.toy(), "--tp", "2", "--ep", "4")
    around(p, first, "--tp 2 --ep 4", "--tp 2 --ep 4")
    fp8 = p.new("ckpt")
    works("glm-convert", "--quiet", "--dtype", "mxfp8", first, fp8)
    for ckpt, dtype in ((first, "bf16"), (fp8, "mxfp8")):
        for _ in range(2):
            out = p.new("ckpt")
            r = answer("glm-convert", "--dtype", dtype, ckpt, out)
            same((r["converted"], r["fingerprint"]), (0, p.fingerprint(ckpt)), f"{dtype} again")
            ckpt = out
