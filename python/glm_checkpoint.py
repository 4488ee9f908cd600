"""Reads a GLM checkpoint: a folder with index.h5 and shard-*.h5 (see glm-checkpoint(5)).

One file, needs only numpy. It reads the user block and the manifest of index.h5 and then the bytes of
the shards; no HDF5 library is involved. Compressed tensors need zstd: the modules compression.zstd or
zstandard if they are there, else the system's libzstd through ctypes.

    import glm_checkpoint
    c = glm_checkpoint.open("CKPT")
    c.names()                                    # logical names of section "weight"
    c.read("model.norm.weight")                  # BF16 comes as float32
    c.read("model.layers.3.mlp.experts.0.up_proj.weight", (slice(0, 8), slice(0, 4)))
    c.read(name, dequantise=True)                # MXFP8 and FP8-block weights times their scales
    c.read(name, verify=True)                    # SHA-256 of every tile that is touched
    c.read("model.norm.weight", section="opt/m")

`python3 glm_checkpoint.py CKPT [NAME]` lists the tensors, or prints one. Its exit status is 2 for a
wrong command line, 3 for a damaged checkpoint or a name that it does not hold, 4 for the rest.
"""
import ctypes
import ctypes.util
import hashlib
import os
import sys

try:
    import numpy as np
except ImportError:
    NEEDS = "glm_checkpoint.py needs numpy, which %s does not have; Debian: apt install python3-numpy, " \
        "in a virtual environment: pip install numpy" % sys.executable
    if __name__ == "__main__":
        print(NEEDS, file=sys.stderr)
        sys.exit(4)
    raise ImportError(NEEDS) from None

__all__ = ["open", "Checkpoint", "Tensor", "CheckpointError"]

BLOCK = 4096
STORED = {  # how elements lie on disk
    "BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4",
    "I64": "<i8", "U64": "<u8", "F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8",
    "C64": "<c8", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1", "F8_E4M3FNUZ": "u1",
    "F8_E5M2FNUZ": "u1"}


class CheckpointError(Exception):
    """The checkpoint is damaged, or is not what it says."""


# ---- element types ------------------------------------------------------------------------------

def _e4m3_table():
    """256 floats: S.1111.111 is NaN, there is no infinity, 448 is the greatest."""
    t = np.empty(256, np.float32)
    for code in range(256):
        e, m = code >> 3 & 15, code & 7
        v = float("nan") if e == 15 and m == 7 else m * 2.0 ** -9 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)
        t[code] = -v if code & 128 else v
    return t


def _e5m2_table():
    """E5M2 is the upper byte of an IEEE half."""
    return (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)


def _e8m0_table():
    """2^(code - 127); 255 is NaN."""
    t = np.ldexp(1.0, np.arange(256) - 127)
    t[255] = np.nan
    return t.astype(np.float32)


E4M3, E5M2, E8M0 = _e4m3_table(), _e5m2_table(), _e8m0_table()


def to_values(raw, dtype):
    """Stored elements as numbers: BF16 and 8-bit floats become float32, the rest stays."""
    if dtype == "BF16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    table = {"F8_E4M3": E4M3, "F8_E5M2": E5M2, "F8_E8M0": E8M0}.get(dtype)
    return raw if table is None else table[raw]


def _bf16_of(f32):
    """float32 -> BF16 bits, to nearest even; a NaN stays one."""
    u = np.ascontiguousarray(f32).view(np.uint32)
    out = ((u.astype(np.uint64) + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(f32), (u >> 16 | 0x40).astype(np.uint16), out)


# ---- zstd ---------------------------------------------------------------------------------------

def _zstd_ctypes():
    name = ctypes.util.find_library("zstd") or "libzstd.so.1"
    lib = ctypes.CDLL(name)
    lib.ZSTD_decompress.restype = ctypes.c_size_t
    lib.ZSTD_decompress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    lib.ZSTD_isError.restype = ctypes.c_uint
    lib.ZSTD_isError.argtypes = [ctypes.c_size_t]

    def decode(frame, size):
        out = ctypes.create_string_buffer(max(size, 1))
        n = lib.ZSTD_decompress(out, size, frame, len(frame))
        if lib.ZSTD_isError(n):
            raise CheckpointError("a zstd frame is damaged")
        return out.raw[:n]
    return decode


def _zstd_module():
    try:
        from compression import zstd
        return lambda frame, size: zstd.decompress(frame)
    except ImportError:
        pass
    try:
        import zstandard
        return lambda frame, size: zstandard.ZstdDecompressor().decompress(frame, max_output_size=size)
    except ImportError:
        pass
    try:
        return _zstd_ctypes()
    except OSError:
        raise CheckpointError("compressed tensors need libzstd, or the module zstandard") from None


_zstd = None


def _unpack(stored, mask, size, element):
    """A chunk as stored -> its bytes. mask 0: zstd, then HDF5's shuffle; else stored raw."""
    global _zstd
    if mask:
        raw = stored
    else:
        _zstd = _zstd or _zstd_module()
        raw = _zstd(stored, size)
    if len(raw) != size:
        raise CheckpointError("a chunk holds %d bytes, expected %d" % (len(raw), size))
    if mask or element < 2:
        return raw
    return np.frombuffer(raw, np.uint8).reshape(element, -1).T.tobytes()


# ---- the manifest -------------------------------------------------------------------------------

class Piece:
    """A rectangle of a tensor in one shard; lo and n along [experts, rows, columns]."""
    __slots__ = ("shard", "lo", "n", "plain", "offset", "bytes", "first_chunk", "chunks")


class Tensor:
    """A line `tensor` of the manifest."""
    __slots__ = ("section", "name", "dtype", "shape", "fingerprint", "first_tile", "derived",
                 "scale_rule", "block", "pieces", "stack", "dims", "tile", "grid")

    def __repr__(self):
        return "<Tensor %s/%s %s %s>" % (self.section, self.name, self.dtype, list(self.shape))


def _numbers(text):
    return tuple(int(x) for x in text.split(",")) if text != "-" else ()


def _unescape(text):
    raw, out, i = text.encode("utf-8", "surrogateescape"), bytearray(), 0
    while i < len(raw):
        if raw[i] == 0x25:
            out.append(int(raw[i + 1:i + 3], 16))
            i += 3
        else:
            out.append(raw[i])
            i += 1
    return out.decode("utf-8", "surrogateescape")


def _is_stack(name):
    return ".mlp.experts." in name


# A scale's name is its weight's with ".weight" replaced.
SCALE_SUFFIXES = (".weight_scale_inv", ".weight_scale", ".scale")
# Matrices whose columns are split: their tiles are 1024 x 256.
_COLUMN_CUT = ("o_proj.weight", "down_proj.weight")


def _is_column_cut(name):
    for suffix in SCALE_SUFFIXES:
        if name.endswith(suffix):
            name = name[:-len(suffix)] + ".weight"
    return name.endswith(_COLUMN_CUT)


class Checkpoint:
    def __init__(self, folder):
        self.folder = os.fspath(folder)
        self.path = os.path.join(self.folder, "index.h5")
        self._files = {}
        self._tiles = self._chunks = None
        self._read_block()
        self._read_manifest()

    # -- bytes --

    def _bytes(self, name, offset, size):
        f = self._files.get(name)
        if f is None:
            f = self._files[name] = io_open(os.path.join(self.folder, name), "rb", buffering=0)
        out = os.pread(f.fileno(), size, offset)
        while len(out) < size:
            more = os.pread(f.fileno(), size - len(out), offset + len(out))
            if not more:
                raise CheckpointError("%s/%s: ends %d bytes early" % (self.folder, name, size - len(out)))
            out += more
        return out

    def close(self):
        for f in self._files.values():
            f.close()
        self._files = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _read_block(self):
        block = self._bytes("index.h5", 0, BLOCK)
        lines = block.split(b"\0", 1)[0].split(b"\n")
        if lines[0] != b"GLMCKPT 1" or len(lines) != 8:
            raise CheckpointError("%s: not the index of a checkpoint" % self.path)
        body, self_line = b"\n".join(lines[:6]) + b"\n", lines[6].split()
        if self_line != [b"self", hashlib.sha256(body).hexdigest().encode()]:
            raise CheckpointError("%s: user block: damaged" % self.path)
        if int(lines[1].split()[1]) != os.path.getsize(self.path):
            raise CheckpointError("%s: the file was cut or appended to" % self.path)
        self._sha256 = lines[2].split()[1].decode()
        self._parts = {}
        for line in lines[3:6]:
            name, offset, size, sha = line.decode().split()
            self._parts[name] = (int(offset), int(size), sha)

    def _part(self, name):
        offset, size, sha = self._parts[name]
        data = self._bytes("index.h5", offset, size)
        if hashlib.sha256(data).hexdigest() != sha:
            raise CheckpointError("%s: the table '%s' is damaged" % (self.path, name))
        return data

    def _read_manifest(self):
        data = self._part("manifest")
        self.id = hashlib.sha256(data).hexdigest()
        self.model = self.fingerprint = None
        self.topology, self.prov, self.sections = {}, {}, {}
        self.shards, self.files, self.sources, self.tensors = [], {}, {}, {}
        last = None
        for line in data.decode("utf-8", "surrogateescape").split("\n")[:-1]:
            f = line.split("\t")
            if f[0] == "glm-manifest 1":
                pass
            elif f[0] == "model":
                self.model, self.mtp = f[1], f[4] == "yes"
            elif f[0] == "topology":
                self.topology = dict(zip(f[1::2], f[2::2]))
            elif f[0] == "shard":
                self.shards.append((f[2], int(f[3]), f[4]))
            elif f[0] == "tensor":
                last = self._tensor(f)
            elif f[0] == "piece":
                last.pieces.append(self._piece(last, f))
            elif f[0] in ("file", "source"):
                where = self.files if f[0] == "file" else self.sources
                where[_unescape(f[1])] = (int(f[4]), int(f[2]), f[3])
            elif f[0] == "prov":
                self.prov[f[1]] = _unescape(f[2])
            elif f[0] == "section":
                self.sections[f[1]] = f[2]
            elif f[0] == "fingerprint":
                self.fingerprint = f[1]
            else:
                raise CheckpointError("%s: manifest: a line '%s'" % (self.path, f[0]))

    def _tensor(self, f):
        t = Tensor()
        t.section, t.name, t.dtype, t.shape = f[1], f[2], f[3], _numbers(f[4])
        t.fingerprint, t.first_tile = f[5], int(f[6])
        t.derived = f[7:] == ["derived master"]
        t.scale_rule = f[7][11:] if f[7:] and f[7].startswith("scale_rule ") else None
        t.block = _numbers(f[7][6:]) if f[7:] and f[7].startswith("block ") else None
        t.pieces = []
        if t.dtype not in STORED:
            raise CheckpointError("tensor '%s': element type %s is not known" % (t.name, t.dtype))
        trained = t.section != "train"
        t.stack = trained and len(t.shape) == 3 and _is_stack(t.name)
        s = t.shape
        if t.stack:
            t.dims = s
        elif len(s) <= 1:
            t.dims = (1, 1, s[0] if s else 1)
        else:
            t.dims = (1, s[0], int(np.prod(s[1:], dtype=np.int64)))
        if len(s) <= 1:
            t.tile = (1, 1, max(t.dims[2], 1))
        elif trained and _is_column_cut(t.name):
            t.tile = (1, 1024, 256)
        else:
            t.tile = (1, 128, max(min(t.dims[2], 16384), 1))
        t.grid = tuple(-(-d // w) for d, w in zip(t.dims, t.tile))
        self.tensors[t.section, t.name] = t
        return t

    @staticmethod
    def _piece(t, f):
        p = Piece()
        p.shard, lo, n = int(f[1]), _numbers(f[2]), _numbers(f[3])
        p.lo = (0,) * (3 - len(lo)) + lo
        p.n = (1,) * (3 - len(n)) + n
        p.plain = f[4] == "plain"
        p.offset, p.first_chunk, p.chunks, p.bytes = 0, 0, 0, int(f[-1])
        if p.plain:
            p.offset = int(f[5])
        else:
            p.first_chunk, p.chunks = int(f[5]), int(f[6])
        return p

    # -- what is there --

    def names(self, section="weight"):
        return [n for s, n in self.tensors if s == section]

    def file(self, path, source=False):
        """The bytes of a side file (or of a source file's safetensors header), checked."""
        offset, size, sha = (self.sources if source else self.files)[path]
        data = self._bytes("index.h5", offset, size)
        if hashlib.sha256(data).hexdigest() != sha:
            raise CheckpointError("%s: side file %s is damaged" % (self.path, path))
        return data

    def find(self, name, section="weight"):
        """(tensor, expert): the row of a logical name, or of one expert's Hugging Face name."""
        t = self.tensors.get((section, name))
        if t is not None:
            return t, None
        head, mid, tail = name.partition(".mlp.experts.")
        number, _, rest = tail.partition(".")
        t = self.tensors.get((section, head + mid + rest))
        if not mid or t is None or not number.isdigit() or int(number) >= t.shape[0]:
            raise KeyError("%s: no tensor '%s' in section %s" % (self.folder, name, section))
        return t, int(number)

    # -- reading --

    def _table(self, name):
        if name == "tiles":
            if self._tiles is None:
                self._tiles = np.frombuffer(self._part("tiles"), np.uint8).reshape(-1, 32)
            return self._tiles
        if self._chunks is None:
            row = np.dtype([("offset", "<u8"), ("bytes", "<u4"), ("mask", "<u4"), ("sha256", "u1", 32)])
            self._chunks = np.frombuffer(self._part("chunks"), row)
        return self._chunks

    def _plain(self, t, p, lo, hi, out):
        """The part [lo, hi) of a plain piece, row ranges by row ranges, into out."""
        item = out.dtype.itemsize
        for e in range(lo[0], hi[0]):
            first = ((e - p.lo[0]) * p.n[1] + lo[1] - p.lo[1]) * p.n[2]
            rows = hi[1] - lo[1]
            data = self._bytes(self.shards[p.shard][0], p.offset + first * item, rows * p.n[2] * item)
            block = np.frombuffer(data, out.dtype).reshape(rows, p.n[2])
            out[e - lo[0]] = block[:, lo[2] - p.lo[2]:hi[2] - p.lo[2]]

    def _packed(self, t, p, lo, hi, out):
        """The same of a compressed piece, chunk by chunk."""
        table, chunk = self._table("chunks"), tuple(min(w, n) for w, n in zip(t.tile, p.n))
        grid = tuple(-(-n // w) for n, w in zip(p.n, t.tile))
        size = int(np.prod(chunk)) * out.dtype.itemsize
        a = [(x - o) // w for x, o, w in zip(lo, p.lo, t.tile)]
        b = [-(-(x - o) // w) for x, o, w in zip(hi, p.lo, t.tile)]
        for i in np.ndindex(*(y - x for x, y in zip(a, b))):
            k = [x + y for x, y in zip(a, i)]
            row = table[p.first_chunk + (k[0] * grid[1] + k[1]) * grid[2] + k[2]]
            stored = self._bytes(self.shards[p.shard][0], int(row["offset"]), int(row["bytes"]))
            if hashlib.sha256(stored).digest() != row["sha256"].tobytes():
                raise CheckpointError("%s: tensor '%s': a compressed chunk at offset %d is damaged"
                                      % (self.shards[p.shard][0], t.name, row["offset"]))
            data = _unpack(stored, int(row["mask"]), size, out.dtype.itemsize)
            tile = np.frombuffer(data, out.dtype).reshape(chunk)
            at = [o + x * w for o, x, w in zip(p.lo, k, t.tile)]
            src, dst = [], []
            for axis in range(3):
                x, y = max(lo[axis], at[axis]), min(hi[axis], at[axis] + chunk[axis])
                src.append(slice(x - at[axis], y - at[axis]))
                dst.append(slice(x - lo[axis], y - lo[axis]))
            out[tuple(dst)] = tile[tuple(src)]

    def _rect(self, t, lo, hi):
        """Stored elements of [lo, hi) in matrix form."""
        out = np.empty([y - x for x, y in zip(lo, hi)], STORED[t.dtype])
        for p in t.pieces:
            a = tuple(max(x, o) for x, o in zip(lo, p.lo))
            b = tuple(min(y, o + n) for y, o, n in zip(hi, p.lo, p.n))
            if all(x < y for x, y in zip(a, b)):
                part = np.empty([y - x for x, y in zip(a, b)], out.dtype)
                (self._plain if p.plain else self._packed)(t, p, a, b, part)
                out[tuple(slice(x - o, y - o) for x, y, o in zip(a, b, lo))] = part
        return out

    def _stored(self, t, lo, hi, verify):
        """Elements as the tensor's type, a derived weight rounded from its master."""
        if verify:
            wide_lo = tuple(x // w * w for x, w in zip(lo, t.tile))
            wide_hi = tuple(min(-(-y // w) * w, d) for y, w, d in zip(hi, t.tile, t.dims))
            wide = self._stored(t, wide_lo, wide_hi, False)
            self._verify(t, wide_lo, wide)
            return wide[tuple(slice(x - o, y - o) for x, y, o in zip(lo, hi, wide_lo))]
        if not t.derived:
            return self._rect(t, lo, hi)
        master = self.tensors["master", t.name]
        return _bf16_of(self._rect(master, lo, hi))

    def _verify(self, t, lo, wide):
        tiles = self._table("tiles")
        steps = [range(0, n, w) for n, w in zip(wide.shape, t.tile)]
        for e in steps[0]:
            for r in steps[1]:
                for c in steps[2]:
                    data = wide[e:e + 1, r:r + t.tile[1], c:c + t.tile[2]]
                    k = [(o + x) // w for o, x, w in zip(lo, (e, r, c), t.tile)]
                    n = (k[0] * t.grid[1] + k[1]) * t.grid[2] + k[2]
                    if hashlib.sha256(data.tobytes()).digest() != tiles[t.first_tile + n].tobytes():
                        raise CheckpointError("tensor '%s' of section %s: tile %d is damaged"
                                              % (t.name, t.section, n))

    def read_stored(self, name, index=None, section="weight", verify=False):
        """Elements as they lie on disk (BF16 as uint16, 8-bit floats as bytes)."""
        t, expert = self.find(name, section)
        shape = t.shape if expert is None else t.shape[1:]
        index = index if isinstance(index, tuple) else () if index is None else (index,)
        if len(index) > len(shape):
            raise IndexError("%d indices for shape %s" % (len(index), list(shape)))
        index += (slice(None),) * (len(shape) - len(index))
        bounds, drop = [], []
        for i, (x, n) in enumerate(zip(index, shape)):
            if isinstance(x, slice):
                a, b, step = x.indices(n)
                if step != 1:
                    raise IndexError("slices have step 1")
                bounds.append((a, max(a, b)))
            else:
                a = int(x) + (n if x < 0 else 0)
                if not 0 <= a < n:
                    raise IndexError("%d is outside %d" % (x, n))
                bounds.append((a, a + 1))
                drop.append(i)
        flat = None
        if not t.stack and len(t.shape) > 2:  # stored as [d0, d1*d2*...]
            flat, bounds = bounds[1:], [bounds[0], (0, t.dims[2])]
        if expert is not None:
            bounds = [(expert, expert + 1)] + bounds
        bounds = [(0, 1)] * (3 - len(bounds)) + bounds
        lo, hi = zip(*bounds)
        if t.dims.count(0) or any(x == y for x, y in bounds):
            out = np.empty([y - x for x, y in bounds], STORED[t.dtype])
        else:
            out = self._stored(t, lo, hi, verify)
        if flat is not None:
            out = out.reshape((out.shape[1],) + t.shape[1:])
            out = out[(slice(None),) + tuple(slice(x, y) for x, y in flat)]
        else:
            out = out.reshape(out.shape[3 - len(shape):])
        return out[tuple(0 if i in drop else slice(None) for i in range(len(shape)))]

    def scale_of(self, name):
        """(name of the scales, rows and columns that one stands for), or None."""
        for suffix in SCALE_SUFFIXES if name.endswith(".weight") else ():
            try:
                t, _ = self.find(name[:-len(".weight")] + suffix)
            except KeyError:
                continue
            if t.block:
                return name[:-len(".weight")] + suffix, t.block
        return None

    def read(self, name, index=None, section="weight", dequantise=False, verify=False):
        """Elements as numbers; with dequantise, quantised weights times their scales."""
        t, _ = self.find(name, section)
        if not dequantise or t.dtype != "F8_E4M3" or self.scale_of(name) is None:
            return to_values(self.read_stored(name, index, section, verify), t.dtype)
        scale_name, (rows, cols) = self.scale_of(name)
        whole = to_values(self.read_stored(name, None, section, verify), t.dtype)
        s = self.read(scale_name, None, section, verify=verify)
        if s.dtype == np.uint8:  # E8M0 under the plain name of a byte
            s = E8M0[s]
        s = np.repeat(np.repeat(s, rows, -2), cols, -1)[..., :whole.shape[-2], :whole.shape[-1]]
        with np.errstate(over="ignore", invalid="ignore"):
            out = whole * s
        return out if index is None else out[index]

    def verify(self):
        """Reads everything: index.h5's own digest, then every tile of every tensor."""
        h, at, size = hashlib.sha256(), BLOCK, os.path.getsize(self.path)
        while at < size:
            data = self._bytes("index.h5", at, min(1 << 20, size - at))
            h.update(data)
            at += len(data)
        if h.hexdigest() != self._sha256:
            raise CheckpointError("%s: damaged" % self.path)
        for (section, name), t in self.tensors.items():
            if 0 not in t.dims:
                self.read_stored(name, section=section, verify=True)
            if self._fingerprint(t) != t.fingerprint:
                raise CheckpointError("tensor '%s' of section %s: its fingerprint differs" % (name, section))

    def _fingerprint(self, t):
        def one(shape, rows):
            text = "glm.tensor.1\n%s\n%s\n" % (t.dtype, " ".join(map(str, shape)))
            return hashlib.sha256(text.encode() + rows.tobytes())
        count = int(np.prod(t.grid, dtype=np.int64))
        rows = self._table("tiles")[t.first_tile:t.first_tile + count]
        if not t.stack:
            return one(t.shape, rows).hexdigest()
        h = hashlib.sha256(b"glm.stack.1\n%d\n" % t.shape[0])
        for member in rows.reshape(t.shape[0], -1, 32):
            h.update(one(t.shape[1:], member).digest())
        return h.hexdigest()


io_open = open


def open(folder):  # noqa: A001 - glm_checkpoint.open is meant to read like the built-in
    return Checkpoint(folder)


def main(argv):
    if len(argv) not in (2, 3):
        print("usage: glm_checkpoint.py CKPT [NAME]", file=sys.stderr)
        return 2
    with Checkpoint(argv[1]) as c:
        if len(argv) == 3:
            print(c.read(argv[2]))
            return 0
        for t in c.tensors.values():
            print("%s\t%s\t%s\t%s" % (t.section, t.name, t.dtype, ",".join(map(str, t.shape)) or "-"))
    return 0


def said(error):
    """Its sentence: a KeyError shows only the quoted key otherwise."""
    return error.args[0] if isinstance(error, KeyError) else error


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv))
    except (CheckpointError, KeyError) as why:
        print("glm_checkpoint.py: %s" % said(why), file=sys.stderr)
        sys.exit(3)
    except (OSError, MemoryError) as why:
        print("glm_checkpoint.py: %s" % why, file=sys.stderr)
        sys.exit(4)
