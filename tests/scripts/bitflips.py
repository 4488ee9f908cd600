"""Single bits, truncation and appended bytes: all found by glm-verify integrity, and named.

A small checkpoint is made once for each kind (plain BF16, zstd, FP8 with scales, MXFP8). Its bytes
are divided into strata by reading the format itself: the user block, manifest, /tiles, /chunks,
side files and the rest (HDF5 structures, virtual views) of index.h5; in shards the data of each
type and encoding, and the skeleton. A bit is flipped in place, the command runs, the bit is flipped
back. Found means: exit 1 and a finding that names

    in data       the file, the tensor and the tile that hold the byte
    elsewhere     the file; in index.h5 the part (user block, manifest, tiles, chunks, side file)

The map is made from the manifest's text, not by the code under test."""
import collections
import json
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BIN", ROOT / "build/release/bin"))
TOOLS = pathlib.Path(os.environ.get("TOOLS", ROOT / "build/release/tools"))
SIZES = {"BF16": 2, "F32": 4, "F16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "U8": 1}

Region = collections.namedtuple("Region", "stratum file begin end tensor tile part")


def tile_shape(name, shape):
    """Rows and columns of a canonical tile, by the format's table (spec/format.md B)."""
    if len(shape) < 2:
        return 1, math.prod(shape)
    rows, cols = shape[-2:]
    if re.search(r"\b(o_proj|down_proj)\.", name):
        return min(rows, 1024), min(cols, 256)
    return min(rows, 128), min(cols, 16384)


def read_manifest(ckpt):
    index = (ckpt / "index.h5").read_bytes()
    block = dict()
    for line in index[:4096].rstrip(b"\0").decode().splitlines():
        key, *rest = line.split(" ")
        block[key] = rest
    at, size = map(int, block["manifest"][:2])
    return index, block, index[at:at + size].decode()


def map_checkpoint(ckpt, kind):
    """Regions that cover every byte of every file."""
    index, block, text = read_manifest(ckpt)
    regions, shards, tensor = [], [], None
    m_at, m_size = map(int, block["manifest"][:2])
    regions.append(Region("user block", "index.h5", 0, 4096, None, None, "user block"))
    regions.append(Region("manifest", "index.h5", m_at, m_at + m_size, None, None, "manifest"))
    inside = [(0, 4096), (m_at, m_at + m_size)]
    for part in ("tiles", "chunks"):
        at, size = map(int, block[part][:2])
        if size > 0:
            name = part[:-1] + " table"
            regions.append(Region(name, "index.h5", at, at + size, None, None, name))
            inside.append((at, at + size))
    chunks_at = int(block["chunks"][0])
    data = collections.defaultdict(list)
    for line in text.splitlines():
        f = line.split("\t")
        if f[0] == "shard":
            shards.append(f[2])
        elif f[0] == "tensor":
            tensor = f
        elif f[0] == "piece":
            regions += piece_regions(f, tensor, shards, index, chunks_at, kind, data)
        elif f[0] == "file":
            body = (ckpt.parent / "src" / f[1])
            if body.exists() and body.stat().st_size > 16:
                at = index.find(body.read_bytes())
                if at >= 0:
                    regions.append(Region("side files", "index.h5", at, at + int(f[2]), None, None, f[1]))
                    inside.append((at, at + int(f[2])))
    at = index.find(b"GCOL")  # global heap collections: the mappings of virtual datasets
    while at >= 0:
        size = int.from_bytes(index[at + 8:at + 16], "little")
        if not any(b <= at < e for b, e in inside) and at + size <= len(index):
            regions.append(Region("virtual-view heap", "index.h5", at, at + size, None, None, None))
            inside.append((at, at + size))
        at = index.find(b"GCOL", at + 4)
    regions += gaps("index structures", "index.h5", len(index), inside)
    for name in shards:
        regions += gaps("skeleton", name, (ckpt / name).stat().st_size, data[name])
    return regions


def gaps(stratum, file, size, taken):
    out, at = [], 0
    for begin, end in sorted(taken):
        if begin > at:
            out.append(Region(stratum, file, at, begin, None, None, None))
        at = max(at, end)
    if at < size:
        out.append(Region(stratum, file, at, size, None, None, None))
    return out


def piece_regions(f, tensor, shards, index, chunks_at, kind, data):
    """One region per piece (plain: the tile follows from the byte) or per chunk."""
    _, _, name, dtype, shape = tensor[:5]
    shape = [int(x) for x in shape.split(",")] if shape else []
    offset = [int(x) for x in f[2].split(",")] if f[2] else []
    size = [int(x) for x in f[3].split(",")] if f[3] else []
    file = shards[int(f[1])]
    where = (name, dtype, shape, offset, size)
    if f[4] == "plain":
        begin, end = int(f[5]), int(f[5]) + int(f[6])
        data[file].append((begin, end))
        return [Region(f"{dtype} plain", file, begin, end, where, None, None)]
    out = []
    for row in range(int(f[5]), int(f[5]) + int(f[6])):
        entry = index[chunks_at + 48 * row:chunks_at + 48 * row + 48]
        begin = int.from_bytes(entry[:8], "little")
        end = begin + int.from_bytes(entry[8:12], "little")
        data[file].append((begin, end))
        out.append(Region(f"{dtype} zstd", file, begin, end, where, row - int(f[5]), None))
    return out


def tile_of(region, byte):
    """(tile number, member or None) of a byte of plain data, or of a chunk."""
    name, dtype, shape, offset, size = region.tensor
    stack = len(shape) == 3
    matrix = shape[-2:] if len(shape) >= 2 else [1, math.prod(shape)]
    lo = (offset[-2:] if len(shape) >= 2 else [0, 0])
    n = size[-2:] if len(shape) >= 2 else matrix
    tr, tc = tile_shape(name, shape)
    grid = (math.ceil(matrix[0] / tr), math.ceil(matrix[1] / tc))
    first = offset[0] if stack else 0
    if region.tile is not None:
        per = math.ceil(n[0] / tr) * math.ceil(n[1] / tc)
        e, t = divmod(region.tile, per)
        row, col = divmod(t, math.ceil(n[1] / tc))
        row, col = row + lo[0] // tr, col + lo[1] // tc
    else:
        element = (byte - region.begin) // SIZES[dtype]
        e, rest = divmod(element, n[0] * n[1])
        row, col = divmod(rest, n[1])
        row, col = (row + lo[0]) // tr, (col + lo[1]) // tc
    member = first + e
    return member * grid[0] * grid[1] + row * grid[1] + col, (member if stack else None)


def verify(ckpt):
    r = subprocess.run([BIN / "glm-verify", "integrity", "--json", "--threads", "1", ckpt],
                       capture_output=True, text=True, errors="replace", timeout=1800)
    try:
        return r.returncode, json.loads(r.stdout)
    except ValueError:
        return r.returncode, None


def named(region, byte, report):
    """None if the report names the damage rightly, else what is missing."""
    text = json.dumps(report) if report else ""
    if region.file not in text:
        return f"no finding names {region.file}"
    if region.tensor:
        findings = report.get("findings", [])
        tile, member = tile_of(region, byte)
        name = region.tensor[0]
        for f in findings:
            if f.get("tensor") == name and f.get("tile") == tile and f.get("file", "").endswith(region.file):
                return None
        return f"no finding names tensor {name}, tile {tile} in {region.file}: {text[:400]}"
    if region.part and region.part.replace("_", " ") not in text.replace("_", " "):
        return f"no finding names the part '{region.part}': {text[:400]}"
    return None


def flip(path, byte, bit):
    with open(path, "r+b") as f:
        f.seek(byte)
        old = f.read(1)[0]
        f.seek(byte)
        f.write(bytes([old ^ (1 << bit)]))


def make(top):
    """{kind: checkpoint folder}"""
    config = json.loads((ROOT / "fixtures/configs/t1.json").read_text())
    config.update(num_hidden_layers=2, mlp_layer_types=["dense", "sparse"],
                  indexer_types=["full"] * 2, n_routed_experts=2, num_experts_per_tok=2,
                  vocab_size=256, hidden_size=128, num_attention_heads=4,
                  num_key_value_heads=4)
    kinds = {
        "bf16": ([], []), "zstd": (["--gauss"], ["--compress", "zstd"]),
        "fp8": (["--fp8", "16,16"], []), "fp8-zstd": (["--fp8", "16,16", "--gauss"],
                                                      ["--compress", "zstd"]),
        "mx": (["--mx", "e8m0"], []),
    }
    out = {}
    for kind, (toy, words) in kinds.items():
        folder = top / kind
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        subprocess.run([TOOLS / "toy", "--config", folder / "config.json", "--out", folder / "src",
                        "--files", "2", *toy], check=True)
        r = subprocess.run([BIN / "glm-import", "--quiet", folder / "src", folder / "ckpt", "--tp", "2",
                            *words], capture_output=True, text=True)
        if r.returncode != 0:
            raise RuntimeError(f"glm-import of {kind} ended {r.returncode}: {r.stderr}")
        out[kind] = folder / "ckpt"
    return out


def plan(strata, count, least, rng):
    """How many flips each stratum gets: at least `least`, the rest by turns."""
    each = {s: least for s in strata}
    names = sorted(strata)
    for i in range(max(0, count - least * len(names))):
        each[names[i % len(names)]] += 1
    for s in names:
        regions = strata[s]
        weights = [r.end - r.begin for _, r in regions]
        for ckpt, r in rng.choices(regions, weights, k=each[s]):
            yield ckpt, r, rng.randrange(r.begin, r.end), rng.randrange(8)


def lengths(ckpts):
    """Truncation by one byte and by half, one byte and a page appended; each file of each."""
    for ckpt in ckpts:
        for path in sorted(ckpt.iterdir()):
            size = path.stat().st_size
            for new in (size - 1, size // 2, 0):
                yield ckpt, path, "cut to", new, None
            for extra in (b"\0", b"x" * 4096):
                yield ckpt, path, "appended", size, extra


def check_lengths(ckpts):
    bad, done = [], 0
    for ckpt, path, what, size, extra in lengths(ckpts):
        keep = path.read_bytes()
        path.write_bytes(keep[:size] + (extra or b""))
        status, report = verify(ckpt)
        path.write_bytes(keep)
        done += 1
        if status != 1:
            bad.append(f"{path.name} {what} {size}: status {status}")
        elif path.name not in json.dumps(report):
            bad.append(f"{path.name} {what} {size}: not named")
    return done, bad


def main(count, least, seed=None):
    missing = [w for w in ("glm-import", "glm-verify") if not (BIN / w).exists()]
    if missing:
        print(f"SKIP bitflips: {', '.join(missing)} is not built")
        return 77
    seed = seed if seed is not None else int(os.environ.get("BITFLIP_SEED", "1"))
    rng, began, status = random.Random(seed), time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="glm-flip-") as folder:
        ckpts = make(pathlib.Path(folder))
        strata = collections.defaultdict(list)
        for kind, ckpt in ckpts.items():
            code, report = verify(ckpt)
            if code != 0:
                print(f"FAIL intact_{kind}: status {code}: {report}")
                return 1
            for r in map_checkpoint(ckpt, kind):
                strata[r.stratum].append((ckpt, r))
        tally, bad = collections.Counter(), collections.defaultdict(list)
        for ckpt, r, byte, bit in plan(strata, count, least, rng):
            flip(ckpt / r.file, byte, bit)
            code, report = verify(ckpt)
            flip(ckpt / r.file, byte, bit)
            tally[r.stratum] += 1
            why = f"status {code}" if code != 1 else named(r, byte, report)
            if why:
                bad[r.stratum].append(f"{ckpt.parent.name} {r.file} byte {byte} bit {bit}: {why}")
        for s in sorted(tally):
            status |= bool(bad[s])
            print(f"{'FAIL' if bad[s] else 'ok'} flips in {s}: {tally[s] - len(bad[s])} of {tally[s]}"
                  f" found and named{': ' + bad[s][0] if bad[s] else ''}")
        done, wrong = check_lengths(ckpts.values())
        status |= bool(wrong)
        print(f"{'FAIL' if wrong else 'ok'} lengths: {done - len(wrong)} of {done} found and named"
              f"{': ' + wrong[0] if wrong else ''}")
        for kind, ckpt in ckpts.items():
            if verify(ckpt)[0] != 0:
                print(f"FAIL flipped_back_{kind}: not intact at the end")
                status = 1
        print(f"# seed {seed}, {sum(tally.values())} flips, {time.monotonic() - began:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500, 10))
