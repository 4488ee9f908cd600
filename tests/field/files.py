"""F, H: files that are not what their name says, indexes that lie. K: names and sizes from outside."""
import gzip
import json
import os
import shutil

from harness import (INDEX, Model, Tensor, equal_tensors, expect, report, run, same, says, tree,
                     works, write_safetensors)

KV_A = "model.layers.2.self_attn.kv_a_proj_with_mqa.weight"
THIRD = "model-00003-of-00004.safetensors"


@report("B-59")
def what_is_no_safetensors_file_is_named(p):
    whole = (p.toy() / THIRD).read_bytes()
    pointer = (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 +
               b"\nsize 3089416\n")
    for data, sentence in ((pointer, "LFS"), (b"", "empty"), (b"<!DOCTYPE html><html>", "HTML"),
                           (gzip.compress(whole[:5000]), "gzip"),
                           (whole[:len(whole) // 2], f"{len(whole) // 2} are there")):
        m = p.model()
        (m.folder / THIRD).write_bytes(data)
        p.refused("glm-import", m.folder, THIRD, sentence)


@report("B-62")
def an_output_is_never_written_through_a_link(p):
    """The output's name is a link into a cache; so is one file of the output."""
    cache = p.new("cache")
    shutil.copytree(p.good(), cache)
    before = tree(cache)
    source = p.checkpoint(p.toy())
    for command, words in (("glm-import", (p.toy(),)), ("glm-reshard", (source,)),
                           ("glm-export", (source,)), ("glm-convert", ("--dtype", "bf16", source))):
        for target in (cache, cache / "index.h5", p.top / "not there"):
            link = p.new("link")
            link.symlink_to(target)
            for extra in ((), ("--replace",), ("--restart",)):
                says(run(command, "--quiet", *extra, *words, link), 2, str(link), "symbolic link")
            expect(link.is_symlink(), f"{command} replaced the link")
            expect(not os.path.lexists(f"{link}.partial"), f"{command} left a partial folder")
    same(tree(cache), before, "the cache")
    out = p.new("out")  # a file of the unfinished output that is a link, with its journal
    partial = out.with_name(out.name + ".partial")
    partial.mkdir()
    for name in sorted(tree(source)):
        (partial / name).symlink_to(cache / "index.h5")
    r = run("glm-import", "--quiet", p.toy(), out)
    same(tree(cache), before, f"the cache, by a link inside: {r}")
    expect(r.status != 0 or not any(f.is_symlink() for f in out.iterdir()), "a link in the output")


@report("B-19")
def three_ways_of_a_wrong_index_are_three_messages(p):
    said = set()
    for change, sentence in (
            (lambda w, m: w.update({"model.layers.0.ghost": THIRD}),
             "weight_map names 'model.layers.0.ghost'"),
            (lambda w, m: w.pop(KV_A), f"weight_map does not name '{KV_A}'"),
            (lambda w, m: w.update({KV_A: next(f for f in m.files if f != m.file_of(KV_A))}),
             f"weight_map says that '{KV_A}' is in")):
        m = p.model()
        index = m.index()
        change(index["weight_map"], m)
        m.write_index(index)
        said.add(p.refused("glm-import", m.folder, INDEX, sentence).err)
    same(len(said), 3, "different messages")


@report("B-20")
def a_missing_file_is_refused(p):
    m = p.model()
    (m.folder / THIRD).unlink()
    p.refused("glm-import", m.folder, THIRD, "is not there")
    (m.folder / INDEX).unlink()  # nobody names it any more: its tensors are missed
    p.refused("glm-import", m.folder, "missing")


@report("B-22")
def a_cut_file_is_refused_with_both_lengths(p):
    size = (p.toy() / THIRD).stat().st_size
    header = int.from_bytes((p.toy() / THIRD).read_bytes()[:8], "little") + 8
    for left in (size - 1, size - 2**20, header):
        m = p.model()
        os.truncate(m.folder / THIRD, left)
        p.refused("glm-import", m.folder, THIRD, str(left), str(size))
    m = p.model()
    with open(m.folder / THIRD, "ab") as f:
        f.write(b"\0")
    p.refused("glm-import", m.folder, THIRD)


@report("B-23")
def no_old_file_survives_an_export(p):
    ckpt, out = p.checkpoint(p.toy()), p.new("hf")
    works("glm-export", "--quiet", "--max-shard-size", "4MB", ckpt, out)
    expect(len(Model(out).files) > 2, "the first export has too few files")
    before = tree(out)
    says(run("glm-export", "--quiet", "--max-shard-size", "8MB", ckpt, out), 2, str(out),
         "--replace")
    same(tree(out), before, "the first export")
    works("glm-export", "--quiet", "--replace", "--max-shard-size", "8MB", ckpt, out)
    m = Model(out)
    same(len(m.files), 2, "files after replacing")
    same(set(m.index()["weight_map"].values()), set(m.files), "files of the index")
    equal_tensors(m.tensors, p.model().tensors)
    expect(not os.path.lexists(f"{out}.partial"), "the old one is left beside it")
    stale = p.model()
    write_safetensors(stale.folder / "model-old.safetensors",
                      {"model.norm.weight": Tensor("BF16", [256], b"\0\1" * 256)})
    p.refused("glm-import", stale.folder, "model-old.safetensors", "weight_map does not name it")


@report("B-25")
def a_wrong_total_size_is_a_warning_and_put_right(p):
    m = p.model()
    index = m.index()
    right = sum(len(t.data) for t in m.tensors.values())
    index["metadata"]["total_size"] = sum(f.stat().st_size for f in m.folder.glob("*safetensors"))
    m.write_index(index)
    ckpt = p.new("ckpt")
    r = works("glm-import", m.folder, ckpt)
    expect("total_size says" in r.err and str(right) in r.err, f"no warning: {r}")
    out = p.exported(ckpt, "--max-shard-size", "4MB")
    same(out.index()["metadata"]["total_size"], right, "total_size of the export")


@report("B-26")
def odd_file_names_are_kept_apart(p):
    for style in ("model.safetensors-{:05d}-of-00004.safetensors",
                  "model-{:05d}-of-000004.safetensors", "{}.safetensors",
                  "model.safetensors-{:05d}-of-00004"):
        m = p.model()
        m.files = {style.format(i + 1): t for i, t in enumerate(m.files.values())}
        m.save()
        ckpt = p.checkpoint(m.folder)
        equal_tensors(p.exported(ckpt).tensors, m.tensors, style)
        again = p.new("hf")
        works("glm-export", "--quiet", "--same-files", ckpt, again)
        same(tree(again), tree(m.folder), f"--same-files of {style}")


@report("B-70")
def onto_itself_no_metadata_alone_yes_and_mode_0644(p):
    m = p.model()
    before = tree(m.folder)
    for extra in ((), ("--replace",)):
        says(run("glm-import", "--quiet", *extra, m.folder, m.folder), 2, str(m.folder), "same")
        says(run("glm-import", "--quiet", *extra, m.folder, m.folder / "in"), 2, "inside the input")
    same(tree(m.folder), before, "the source")
    ckpt = p.checkpoint(m.folder)
    before = tree(ckpt)
    for words in (("glm-export", ckpt), ("glm-reshard", "--tp", "2", ckpt),
                  ("glm-convert", "--dtype", "mxfp8", ckpt)):
        says(run(words[0], "--quiet", "--replace", *words[1:], ckpt), 2, str(ckpt), "same")
        link = p.new("link")
        link.symlink_to(ckpt)
        says(run(words[0], "--quiet", "--replace", *words[1:], link), 2, str(link))
    same(tree(ckpt), before, "the checkpoint")
    m.files["only-metadata.safetensors"] = {}
    m.save()
    same(len(list(m.folder.glob("*.safetensors"))), 5, "files of the source")
    with_it = p.checkpoint(m.folder)
    equal_tensors(p.exported(with_it).tensors, m.tensors)
    again = p.new("hf")
    works("glm-export", "--quiet", "--same-files", with_it, again)
    same(tree(again), tree(m.folder), "--same-files with a file of metadata alone")
    old = os.umask(0o022)
    try:
        for folder in (p.checkpoint(p.toy()), p.exported(ckpt).folder):
            same({oct(f.stat().st_mode & 0o7777) for f in folder.iterdir()}, {"0o644"}, "modes")
            same(oct(folder.stat().st_mode & 0o7777), "0o755", "mode of the folder")
    finally:
        os.umask(old)


@report("B-71")
def names_cannot_leave_the_folder(p):
    outside = p.new("outside")
    outside.write_bytes(b"secret")
    for name in ("\\\\server\\share\\x.json", "C:x.json", "CON.json", "x.json.", "a\nb.json"):
        m = p.model()
        (m.folder / name).write_bytes(b"{}")
        p.refused("glm-import", m.folder, "the file name '")
    for name in (f"../{outside.name}", str(outside), "a/../../x.safetensors", "..", ""):
        m = p.model()
        index = m.index()
        index["weight_map"][KV_A] = name
        m.write_index(index)
        p.refused("glm-import", m.folder, INDEX)
    same(outside.read_bytes(), b"secret", "the file outside")


def header_with(p, text):
    m = p.model()
    data = text.encode()
    (m.folder / THIRD).write_bytes(len(data).to_bytes(8, "little") + data + b"\0" * 64)
    return m.folder


@report("B-76")
def sizes_that_overflow_are_refused(p):
    for n in (2**31, 2**32, 2**32 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -1):
        for shape, offsets in (([n], [0, 64]), ([2, n], [0, 64]), ([4], [0, n]), ([4], [n, 8]),
                               ([2**32, 2**32, n], [0, 0])):
            entry = {"dtype": "BF16", "shape": shape, "data_offsets": offsets}
            folder = header_with(p, json.dumps({"x": entry}))
            r = run("glm-import", "--quiet", folder, p.new("out"))
            says(r, 3, THIRD)
            shutil.rmtree(folder)
    for size in (2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1):
        m = p.model()
        data = (m.folder / THIRD).read_bytes()
        (m.folder / THIRD).write_bytes(size.to_bytes(8, "little") + data[8:])
        p.refused("glm-import", m.folder, THIRD)
    for key in ("hidden_size", "num_hidden_layers", "n_routed_experts", "vocab_size",
                "moe_intermediate_size", "num_attention_heads"):
        for n in (2**32, 2**62, 2**63, 2**64):
            m = p.model()
            m.config(**{key: n})
            r = run("glm-import", "--quiet", m.folder, p.new("out"))
            says(r, 3, "config.json")
            shutil.rmtree(m.folder)
    m = p.model()
    (m.folder / THIRD).write_bytes(b"\x80\x02}q\x00." + b"PK\x03\x04" * 40)  # a pickle
    p.refused("glm-import", m.folder, THIRD)
