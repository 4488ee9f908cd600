"""B, D, G, I: training state through topologies, memory and space, half-written and corrupt."""
import json
import os
import re
import shutil
import subprocess

from harness import (TOOLS, Skip, answer_mode, changed_config, equal, expect, not_accepted,
                     read_header, report, run, same, says, tree, works)
from lost import around

ALL = ("--section", "all")


def training(p, *words):
    out = p.new("ckpt")
    works(TOOLS / "smallckpt", out, "training", *words)
    return out


@report("B-13")
def optimizer_state_survives_a_chain_of_topologies(p):
    first = training(p)
    last = around(p, first, "--tp 2", "--tp 4 --ep 2", "--pp 2", "--tp 1")
    equal(first, last, *ALL)
    for name, digest in tree(first).items():
        if name != "index.h5":  # its provenance names the parent
            same(tree(last)[name], digest, name)
    packed = p.new("ckpt")
    works("glm-reshard", "--quiet", "--compress", "zstd", "--tp", "2", "--pp", "2", first, packed)
    same(p.fingerprint(around(p, packed, "--tp 4", "--tp 2 --pp 2 --ep 4")), p.fingerprint(first),
         "fingerprint through packed shards")


@report("B-14")
def optimizer_codes_keep_their_scales_through_any_cut(p):
    """Blocks of 200 x 48 and 1 x 24 elements (tests/support/trainstate.h) fit no tile and no cut."""
    first = p.new("ckpt")
    works(TOOLS / "trainstate", p.checkpoint(p.toy()), first, "--codes")
    expect("_scale" in works("glm-inspect", "--tree", first).out, "the fixture has no scales")
    last = around(p, first, "--tp 8 --ep 4 --etp 2", "--tp 2 --pp 3", "--tp 1")
    equal(first, last, *ALL)
    for name, digest in tree(first).items():
        if name != "index.h5":
            same(tree(last)[name], digest, name)


@report("B-80")
def typed_state_is_carried_and_never_missed(p):
    import h5py
    first = training(p, "tp2,pp2")
    last = around(p, first, "--tp 1 --pp 4")
    found = []
    with h5py.File(first / "index.h5") as a, h5py.File(last / "index.h5") as b:
        for name, x in a["train"].items():
            y = b["train"][name]
            same((y.dtype, y.shape, y[()].tobytes()), (x.dtype, x.shape, x[()].tobytes()), name)
            found.append(str(x.dtype))
    expect(len(found) >= 13 and len(set(found)) >= 8, f"few types: {found}")
    holder = next(f for f in sorted(first.iterdir()) if f.name.startswith("shard-p001"))
    holder.unlink()
    p.refused("glm-reshard", first, holder.name)


@report("B-82")
def a_change_of_one_expert_s_moment_arrives_everywhere(p):
    old, new = training(p, "tp2,ep4"), training(p, "tp2,ep4", "changed")
    wanted = differences(old, new)
    same(len(wanted), 1, "changed tensors")
    expect(re.search(r"momentum model\.layers\.3\.mlp\.experts\.", wanted[0]),
           f"the fixture changed {wanted}")
    for way in ("--tp 4 --ep 2", "--pp 2 --ep 8", "--tp 1"):
        a, b = around(p, old, way), around(p, new, way)
        same(differences(a, b), wanted, f"after {way}")
        equal(b, new, *ALL)


def differences(a, b):
    r = run("glm-verify", "diff", "--json", "--quiet", *ALL, a, b)
    same(r.status, 1, f"two different checkpoints: {r}")
    return [f"{d['section']} {d['tensor']}" for d in json.loads(r.out)["differences"]]


# ---- D: memory and space ------------------------------------------------------------------------

def bounded(p, *words):
    """A command under 1 GiB of address space; its peak stays below 512 MB."""
    r = works(*words, front=("prlimit", f"--as={2**30}"))
    expect(r.peak_kb <= 512 * 1024, f"{r.peak_kb} kB: {r}")


@report("B-38")
def an_import_fits_in_a_gigabyte(p):
    big = p.toy("--sparse", config="t3-1g")
    bounded(p, "glm-import", "--quiet", "--threads", "4", big, p.new("ckpt"))


@report("B-40")
def joining_eight_ranks_fits_in_a_gigabyte(p):
    big = p.toy("--sparse", config="t3-1g")
    wide, one = p.new("ckpt"), p.new("ckpt")
    works("glm-import", "--quiet", "--tp", "8", "--ep", "2", big, wide)
    bounded(p, "glm-reshard", "--quiet", "--threads", "4", wide, one)
    same(answer_mode("integrity", "--quick", one)["fingerprint"],
         answer_mode("integrity", "--quick", wide)["fingerprint"], "fingerprint")


class Disk:
    """A file system of its own size; root only."""

    def __init__(self, p, size):
        self.path = p.new("disk")
        self.path.mkdir()
        r = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", self.path],
                           capture_output=True)
        if r.returncode != 0:
            raise Skip("cannot mount a tmpfs (not root?)")

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        subprocess.run(["umount", self.path], check=True)


@report("B-43")
def too_little_space_is_said_before_writing(p):
    source = p.checkpoint(p.toy())
    plain = p.new("ckpt")
    works("glm-reshard", "--quiet", "--tp", "2", source, plain)
    size = sum(f.stat().st_size for f in plain.iterdir())
    exported = p.exported(source).folder
    model = sum(f.stat().st_size for f in exported.iterdir())
    for command, words, bytes_ in (("glm-reshard", ("--tp", "2", source), size),
                                   ("glm-import", (p.toy(),), size),
                                   ("glm-export", (source,), model)):
        with Disk(p, int(bytes_ * 1.1) // 4096 * 4096) as disk:
            works(command, "--quiet", *words, disk / "out")
        with Disk(p, int(bytes_ * 0.9) // 4096 * 4096) as disk:
            r = run(command, "--quiet", *words, disk / "out")
            free = os.statvfs(disk)
            says(r, 4, str(disk / "out"), "needs", "bytes", "nothing was written")
            needs, there = map(int, re.search(r"needs (\d+) bytes, (\d+) are free", r.err).groups())
            expect(bytes_ * 0.95 < needs < bytes_ * 1.1, f"needs {needs} for {bytes_}")
            expect(abs(there - bytes_ * 0.9) < 65536, f"{there} free of {bytes_ * 0.9}")
            same(list(disk.iterdir()), [], "what is on the small disk")
            same(free.f_bavail, free.f_blocks, "free blocks")


# ---- G: half-written, corrupt -------------------------------------------------------------------

def traced(p, *words, calls, inject=()):
    """A command under strace: its result, and the trace's lines without process ids."""
    if not shutil.which("strace"):
        raise Skip("strace is not installed")
    log = p.new("trace")
    r = run(*words, front=("strace", "-f", "-y", "-qq", "-o", log, "-e", f"trace={calls}",
                           *[x for i in inject for x in ("-e", f"inject={i}")]))
    if "ptrace" in r.err:
        raise Skip("strace may not trace here")
    return r, [line.split(None, 1)[1] for line in log.read_text(errors="replace").splitlines()]


@report("B-65")
def data_is_durable_before_its_name(p):
    """Per file of the output: the last write before its last fsync, that before the rename of the
    folder, whose own fsync comes before, and that of the parent after."""
    source = p.toy()
    for command, src in (("glm-import", source), ("glm-export", p.checkpoint(source))):
        out = p.new("out")
        r, lines = traced(p, command, "--quiet", src, out,
                          calls="write,pwrite64,pwritev,writev,ftruncate,fsync,fdatasync,renameat2,"
                          "rename,mmap")
        same(r.status, 0, str(r))
        partial = f"{out}.partial"
        renames = [i for i, x in enumerate(lines) if x.startswith("rename") and str(out) in x
                   and "= 0" in x]
        same(len(renames), 1, "renames")
        wrote, synced = {}, {}
        for i, line in enumerate(lines):
            m = re.match(r"(\w+)\(\d+<([^>]*)>", line)
            if not m or not m.group(2).startswith((partial, str(out))):
                continue
            (synced if "sync" in m.group(1) else wrote)[m.group(2)] = i
        files = {f"{partial}/{n}" for n in tree(out)}
        same(files - set(wrote), set(), "files that were never written")
        for f in files:
            expect(synced.get(f, -1) > wrote[f], f"{f}: written after its last fsync")
            expect(synced[f] < renames[0], f"{f}: fsync after the rename")
        expect(max(synced[f] for f in files) < synced[partial] < renames[0],
               "the folder's fsync is not the last one before the rename")
        expect(any("sync" in x and f"<{p.top}>" in x for x in lines[renames[0]:]),
               "the parent is not fsynced after the rename")


@report("B-67")
def eighteen_wrong_values_are_found_where_they_are(p):
    name = "model.layers.0.mlp.gate_proj.weight"  # [448, 256]: 4 tiles of 128 rows
    ckpt = p.checkpoint(p.toy())
    piece = re.search(r"piece .* in (\S+) at byte (\d+)", works("glm-inspect", ckpt, name).out)
    path, offset = ckpt / piece.group(1), int(piece.group(2))
    with open(path, "r+b") as f:
        for i in range(18):
            at = offset + 2 * ((130 + i) * 256 + 7)  # column 7 of rows 130 to 147: second tile
            f.seek(at)
            b = f.read(1)
            f.seek(at)
            f.write(bytes([b[0] ^ 1]))
    r = run("glm-verify", "integrity", "--quiet", ckpt)
    expect(r.status == 1, str(r))
    text = r.out + r.err
    for part in (path.name, name, "tile", "128"):
        expect(part in text, f"verify does not say {part}: {text}")
    unproven = p.new("hf")  # element by element, where there are no recorded digests to trust
    works("glm-export", "--quiet", "--no-verify", ckpt, unproven)
    d = run("glm-verify", "diff", "--quiet", unproven, p.toy())
    expect(d.status == 1 and name in d.out and "18 of" in d.out, f"diff: {d.out}")
    for command, options in (("glm-export", ()), ("glm-reshard", ("--tp", "2")),
                             ("glm-convert", ("--dtype", "mxfp8"))):
        out = p.new("out")
        says(run(command, "--quiet", *options, ckpt, out), 3, path.name, name, "tile")
        expect(not out.exists(), f"{command} left an output")
        not_accepted(f"{out}.partial")


@report("B-68")
def a_checkpoint_is_complete_only_with_its_shards(p):
    whole = p.checkpoint(p.toy(), "--tp", "2", "--ep", "2")
    copy = p.new("copy")
    copy.mkdir()
    shutil.copy(whole / "index.h5", copy)  # the master first
    shards = sorted(f.name for f in whole.iterdir() if f.name != "index.h5")
    for name in shards:
        r = run("glm-verify", "integrity", "--quick", copy)
        expect(r.status == 1 and name in r.out + r.err and "not intact" in r.out + r.err,
               f"before {name}: {r.out} {r}")
        p.refused("glm-export", copy, "incomplete: shard shard-", "is missing")
        p.refused("glm-reshard", copy, "incomplete: shard shard-", "is missing")
        data = (whole / name).read_bytes()
        (copy / name).write_bytes(data[:len(data) // 2])  # the copy is on its way
        r = run("glm-verify", "integrity", "--quick", copy)
        expect(r.status == 1 and name in r.out + r.err, f"half of {name}: {r}")
        p.refused("glm-reshard", copy, name if name == shards[-1] else "shard-")
        (copy / name).write_bytes(data)
    works("glm-verify", "integrity", copy)
    stale = p.new("copy")  # an index of another time beside these shards
    shutil.copytree(whole, stale)
    other = p.checkpoint(p.toy("--seed", "7"), "--tp", "2", "--ep", "2")
    shutil.copy(other / "index.h5", stale)
    same(run("glm-verify", "integrity", "--quiet", stale).status, 1, "an index of other shards")


@report("B-95")
def a_quota_hit_at_the_last_rename_loses_nothing(p):
    source = p.toy()
    wanted = tree(p.checkpoint(source))
    out = p.new("out")
    words = ("glm-import", "--quiet", source, out)
    r, _ = traced(p, *words, calls="renameat2,rename",
                  inject=("renameat2:error=EDQUOT", "rename:error=EDQUOT"))
    says(r, 4, str(out))
    expect(not out.exists(), "the output is there")
    works(*words)
    same(tree(out), wanted, "the output of the next run")
    expect(not os.path.lexists(f"{out}.partial"), "the partial folder is left")
    shutil.copytree(p.good(), p.top / "old")  # the same over a previous good one
    before = tree(p.top / "old")
    words = ("glm-import", "--quiet", "--replace", source, p.top / "old")
    r, _ = traced(p, *words, calls="renameat2,rename",
                  inject=("renameat2:error=EDQUOT", "rename:error=EDQUOT"))
    same((r.status, tree(p.top / "old")), (4, before), f"the previous one: {r}")
    works(*words)
    same(tree(p.top / "old"), wanted, "after the next run")


# ---- I: how data is read ------------------------------------------------------------------------

@report("B-77")
def an_import_reads_in_order_and_in_big_pieces(p):
    config = changed_config(p, hidden_size=2048, moe_intermediate_size=2048, n_routed_experts=2)
    big = p.toy("--sparse", config=config)
    data = sum(f.stat().st_size for f in big.glob("*.safetensors"))
    expect(data > 20e6, f"the fixture has only {data} bytes")
    r, lines = traced(p, "glm-import", "--quiet", "--threads", "1", big, p.new("ckpt"),
                      calls="read,pread64,readv,preadv,preadv2,mmap")
    same(r.status, 0, str(r))
    reads, last = [], {}
    for line in lines:
        m = re.match(r"(\w+)\((?:[^<]*?)\d+<([^>]*\.safetensors)>", line)
        if line.startswith("mmap("):
            expect(".safetensors" not in line, f"a mapping of data: {line}")
        elif m:
            n = int(line.rsplit("=", 1)[1].split()[0])
            at = re.search(r", (\d+)\) += ", line)
            if m.group(1).startswith("pread") and at:
                reads.append((m.group(2), int(at.group(1)), n))
    for name, at, n in reads:
        if n > 65536:
            # Direct reads are of whole blocks: neighbours may share one.
            expect(at >= last.get(name, 0) - 4096, f"{name}: read at {at} after {last.get(name)}")
            last[name] = at + n
    total = sum(n for *_, n in reads)
    small = sum(n for *_, n in reads if n < 2**20)
    expect(data <= total <= 1.1 * data, f"{total} bytes read of {data}")
    # Tensors below 1 MiB cannot be read in bigger pieces.
    below = sum(t["data_offsets"][1] - t["data_offsets"][0] + 8192
                for f in big.glob("*.safetensors") for k, t in read_header(f)[0].items()
                if k != "__metadata__" and
                t["data_offsets"][1] - t["data_offsets"][0] < 2**20 + 8192)
    headers = sum(read_header(f)[1] for f in big.glob("*.safetensors"))
    expect(small <= 1.05 * (below + headers) + 65536 * len(last),
           f"{small} bytes in reads below 1 MiB, {below} in tensors below it")
