#!/usr/bin/env python3
"""Local sources that lie: names and links that lead elsewhere, JSON that is made to hurt, numbers that
are none, offsets that do not fit. Every one is refused in a sentence that names the file (and the
tensor), without a crash, in bounded memory, and leaves nothing that looks complete.

    test_hostile_sources.py [--long] [NAME...]      --long: larger bombs too

Prints "ok NAME" or "FAIL NAME: why" and a closing line with the counts. What the tests of field
reports have is not here (tests/field/files.py); unit tests: tests/convert/test_safetensors,
test_hfdir_index."""
import json
import os
import pathlib
import shutil
import struct
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "field"))
from harness import (INDEX, MEMORY_LIMIT_KB, Failure, Place, expect, read_header,  # noqa: E402
                     run, same, says, tree, works)

FIRST, SECOND = "model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors"
NORM = "model.norm.weight"

tests = []
long = "--long" in sys.argv


def test(function):
    tests.append(function)
    return function


def refused(p, m, *parts, status=3):
    """The import ends with one sentence that has the parts; nothing is left that is accepted."""
    out = p.new("refused")
    r = run("glm-import", "--quiet", m.folder, out)
    says(r, status, *parts)
    lines = r.err.strip().splitlines()
    same(len(lines), 1, f"lines of the refusal {r.err!r}")
    expect(len(lines[0]) < 1500 and lines[0].isprintable(), f"no sentence: {r.err[:300]!r}")
    expect(not os.path.lexists(out), f"an output is there: {r}")
    return r


def header(m, file):
    return read_header(m.folder / file)


def put_header(m, file, text, data=None):
    """Replaces a file's header by a text; data: what follows, the old data unless told."""
    path = m.folder / file
    if data is None:
        data = path.read_bytes()[header(m, file)[1]:]
    text = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def entry(dtype="BF16", shape=(4,), begin=0, end=8):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


# ---- links and what is no file ------------------------------------------------------------------

@test
def side_files_by_links_out_of_the_folder_are_refused(p):
    secret = p.new("secret")
    secret.write_text("not for the world\n")
    for name in ("README.md", "tokenizer_config.json", "config.json"):
        for target in (secret, pathlib.Path("..") / secret.name, pathlib.Path("/etc/hostname")):
            m = p.model()
            if name == "config.json" and target == secret:
                shutil.copy(m.folder / name, secret)
            (m.folder / name).unlink()
            (m.folder / name).symlink_to(target)
            refused(p, m, name, "link", "leads out of the folder")
            shutil.rmtree(m.folder)
    m = p.model()  # in two steps
    (m.folder / "LICENSE").unlink()
    (m.folder / "LICENSE").symlink_to("inner")
    (m.folder / "inner").symlink_to(secret)
    refused(p, m, "LICENSE", "leads out of the folder")


@test
def links_inside_the_folder_and_into_a_hub_cache_are_followed(p):
    m = p.model()
    (m.folder / FIRST).rename(m.folder / "first.data")
    (m.folder / FIRST).symlink_to("first.data")
    (m.folder / "README.md").rename(m.folder / "text")
    (m.folder / "README.md").symlink_to("text")
    want = p.fingerprint(p.checkpoint(p.toy()))
    same(p.fingerprint(p.checkpoint(m.folder)), want, "by links inside")
    cache = p.new("cache") / "models--test--model"
    snapshot = cache / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for i, f in enumerate(sorted(p.toy().iterdir())):
        blob = cache / "blobs" / f"{i:040x}"
        shutil.copy(f, blob)
        (snapshot / f.name).symlink_to(f"../../blobs/{blob.name}")
    same(p.fingerprint(p.checkpoint(snapshot)), want, "of a hub cache")
    m = p.model()  # weights on another disk: they are checked against the table, so no secret leaks
    other = p.new("disk")
    other.mkdir()
    (m.folder / FIRST).rename(other / "weights")
    (m.folder / FIRST).symlink_to(other / "weights")
    same(p.fingerprint(p.checkpoint(m.folder)), want, "weights by a link to another disk")


@test
def links_that_go_in_circles_are_refused(p):
    for name in (FIRST, INDEX, "config.json", "README.md"):
        m = p.model()
        (m.folder / name).unlink()
        (m.folder / name).symlink_to(name)
        refused(p, m, name, "circle")
        (m.folder / name).unlink()
        (m.folder / name).symlink_to("nowhere")
        refused(p, m, name, "a link to a file that is not there")
        shutil.rmtree(m.folder)


@test
def pipes_devices_sockets_and_folders_are_no_files_of_a_model(p):
    for name in (FIRST, INDEX, "config.json"):
        for kind, make in (("a pipe", os.mkfifo), ("a folder", os.mkdir),
                           ("a device", lambda f: os.symlink("/dev/zero", f)),
                           ("a device", lambda f: os.symlink("/dev/stdin", f)
                            if not sys.stdin.isatty() else os.symlink("/dev/null", f))):
            m = p.model()
            (m.folder / name).unlink()
            make(m.folder / name)
            refused(p, m, name, kind if kind != "a device" else "")
            shutil.rmtree(m.folder)


@test
def names_that_escape_are_refused(p):
    victim = p.new("victim")
    victim.write_bytes((p.toy() / FIRST).read_bytes())
    for name in (f"../{victim.name}", str(victim), f"sub/../../{victim.name}", f"./{FIRST}",
                 f"{FIRST}/", FIRST + "\\", FIRST.upper(), FIRST + "\0x", "x" * 5000, "", "/",
                 "file:///etc/passwd", "https://example.org/" + FIRST, "~/x", "C:\\x"):
        m = p.model()
        index = m.index()
        name_of = next(n for n, f in index["weight_map"].items() if f == FIRST)
        index["weight_map"][name_of] = name
        m.write_index(index)
        refused(p, m, INDEX, "byte ", *([name_of] if "\0" not in name else ()))
        shutil.rmtree(m.folder)


# ---- JSON made to hurt --------------------------------------------------------------------------

def texts():
    """What no JSON reader may fall over: what it is, parts. A part is bytes or (bytes, times); nothing
    large is ever held here, since a child's peak counts from its parent's."""
    yield "depth of arrays", [b'{"a":', (b"[", 1000000)]
    yield "depth of objects", [(b'{"a":', 300000)]
    yield "closed depth", [b'{"a":', (b"[", 100000), (b"]", 100000), b"}"]
    yield "a number of a megabyte", [b'{"a":', (b"1", 1000000), b"}"]
    yield "a string without end", [b'{"a":"', (b"x", 1000000)]
    yield "white space", [(b" ", 1000000)]
    for what, text in (("a key twice", b'{"a":1,"a":2}'),
                       ("a key twice by an escape", b'{"a":1,"\\u0061":2}'),
                       ("a key twice inside", b'{"x":{"a":1,"a":2}}'),
                       ("not UTF-8", b'{"a":"\xff"}'),
                       ("overlong UTF-8", b'{"a":"\xc0\xaf"}'),
                       ("half a surrogate", b'{"a":"\\ud800"}'),
                       ("NUL", b'{"a":"\\u0000"}'),
                       ("a raw NUL", b'{"a":"\0"}'),
                       ("a byte order mark", b"\xef\xbb\xbf{}"),
                       ("UTF-16", '{"a":1}'.encode("utf-16")),
                       ("beyond double", b'{"a":1e999999}'),
                       ("NaN", b'{"a":NaN}'),
                       ("a comment", b'{"a":1 /* two */}'),
                       ("a comma too many", b'{"a":1,}'),
                       ("two values", b"{} {}"),
                       ("an array", b"[]"),
                       ("nothing", b"")):
        yield what, [text]


def bombs(size):
    """Texts that grow when they are parsed into trees, of about so many bytes."""
    yield "empty objects", [b'{"a":[', (b"{},", size // 3), b"{}]}"]
    yield "numbers", [b'{"a":[', (b"1,", size // 2), b"1]}"]
    yield "one key for ever", [b"{", (b'"a":{},', size // 7), b'"a":{}}']
    yield "keys", [b"{", (b'"%08d":[],', size // 14, range), b'"a":[]}']
    yield "strings", [b"{", (b'"%08d":"",', size // 14, range), b'"a":""}']


def put(path, *parts, length=False):
    """Writes parts to a file; length: a safetensors header of them, its length first, 8 bytes last."""
    with open(path, "wb") as f:
        if length:
            f.write(b"\0" * 8)
        for part in parts:
            if isinstance(part, bytes):
                f.write(part)
            elif len(part) == 3:
                for at in range(0, part[1], 1000):
                    f.write(b"".join([part[0] % i for i in range(at, min(at + 1000, part[1]))]))
            else:
                step = min(part[1], 1 + (1 << 16) // len(part[0]))
                for at in range(0, part[1], step):
                    f.write(part[0] * min(step, part[1] - at))
        if length:
            size = f.tell() - 8
            f.write(b"\0" * 8)
            f.seek(0)
            f.write(struct.pack("<Q", size))


@test
def config_json_that_hurts_is_refused(p):
    m = p.model()
    for what, parts in (*texts(), *bombs(60 << 20 if long else 12 << 20), *bombs(2 << 20)):
        put(m.folder / "config.json", *parts)
        try:
            refused(p, m, "config.json")
        except Failure as e:
            raise Failure(f"{what}: {e}")


@test
def an_index_that_hurts_is_refused(p):
    m = p.model()
    right = json.dumps(m.index()["weight_map"]).encode()
    for what, parts in (*texts(), *bombs(900 << 10), *(bombs(30 << 20) if long else ())):
        for front, back in ((b"", b""), (b'{"metadata":', b',"weight_map":' + right + b"}"),
                            (b'{"weight_map":', b"}"),
                            (b'{"other":', b',"weight_map":' + right + b"}")):
            put(m.folder / INDEX, front, *parts, back)
            try:
                r = run("glm-import", "--quiet", "--dry-run", m.folder, p.new("out"))
                if r.status:
                    says(r, 3, INDEX)
                else:  # other members are nobody's business, if they are JSON
                    expect(front[2:3] in (b"m", b"o"), f"accepted: {r}")
                expect(r.peak_kb <= MEMORY_LIMIT_KB, f"{r.peak_kb} kB")
            except Failure as e:
                raise Failure(f"{what}: {front}: {e}")


@test
def a_header_that_hurts_is_refused(p):
    m = p.model()
    for what, parts in (*texts(), *bombs(7 << 20), *(bombs(90 << 20) if long else ())):
        for front, back in ((b"", b""), (b'{"__metadata__":', b"}"), (b'{"w":', b"}")):
            if not long and parts[-1] != parts[0] and len(parts) > 1 and front[3:4] == b"w":
                continue  # the same walk as without a front
            put(m.folder / SECOND, front, *parts, back, length=True)
            try:
                refused(p, m, "" if what == "strings" and front else SECOND)
            except Failure as e:
                raise Failure(f"{what}: {front}: {e}")


@test
def headers_of_a_hundred_megabytes_are_read_or_refused_within_bounds(p):
    """One, then one in each of eight files: the sum is bounded too."""
    m = p.model()
    one = b'"%09d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
    count = (100_000_000 - 70) // len(one % 0)
    rest = 100_000_000 - 1 - count * len(one % 0)
    last = (one % count)[:-1] + b"}"
    put(m.folder / SECOND, b"{", (one, count, range), last + b" " * (rest - len(last)), length=True)
    os.truncate(m.folder / SECOND, 8 + 100_000_000)
    (m.folder / INDEX).unlink()
    refused(p, m, "extra")
    for i in range(8):
        os.link(m.folder / SECOND, m.folder / f"more-{i}.safetensors")
    refused(p, m, "headers", "limit")


@test
def side_files_are_bounded_together(p):
    m = p.model()
    for i in range(8):
        with open(m.folder / f"extra-{i}.json", "wb") as f:
            f.truncate(200 << 20)
    refused(p, m, "side files", "limit")
    for i in range(8):
        (m.folder / f"extra-{i}.json").unlink()
    with open(m.folder / "one.json", "wb") as f:
        f.truncate(1 << 40)
    refused(p, m, "one.json")


# ---- numbers ------------------------------------------------------------------------------------

@test
def numbers_that_are_none_are_refused(p):
    m = p.model()
    right = json.loads((m.folder / "config.json").read_text())
    for key in ("num_hidden_layers", "hidden_size", "n_routed_experts", "vocab_size",
                "num_nextn_predict_layers", "kv_lora_rank"):
        for text in ("-1", "1.0", "5.5", "1e3", "true", '"5"', "[5]", "{}", "9223372036854775807",
                     "9223372036854775808", "-9223372036854775808", "1e400", "2147483648",
                     "1000000000"):
            if key not in right:
                raise Failure(f"the toy has no {key}")
            whole = json.dumps({**right, key: "@"}).replace('"@"', text)
            (m.folder / "config.json").write_text(whole)
            try:
                r = refused(p, m)
                expect("config.json" in r.err or "missing" in r.err or "misshapen" in r.err or
                       "extra" in r.err, f"no reason: {r}")
            except Failure as e:
                raise Failure(f"{key}: {text}: {e}")


@test
def counts_that_are_too_large_together_are_refused(p):
    """Each in its range; the product is a table that no memory holds."""
    for changes in ({"num_hidden_layers": 100000, "n_routed_experts": 100000},
                    {"num_hidden_layers": 1000000}, {"n_routed_experts": 1000000},
                    {"num_nextn_predict_layers": 1000000}):
        m = p.model()
        m.config(**changes)
        refused(p, m)
        shutil.rmtree(m.folder)


# ---- tensors and where they lie -----------------------------------------------------------------

@test
def offsets_that_do_not_fit_are_refused_by_the_tensors_name(p):
    m = p.model()
    right, start = header(m, SECOND)
    data = (m.folder / SECOND).read_bytes()[start:]
    names = sorted((n for n in right if n != "__metadata__"),
                   key=lambda n: right[n]["data_offsets"])
    a, b, last = names[0], names[1], names[-1]

    def with_offsets(name, begin, end, **more):
        h = json.loads(json.dumps(right))
        h[name].update(data_offsets=[begin, end], **more)
        return h
    (a0, a1), (b0, b1), (l0, l1) = (right[n]["data_offsets"] for n in (a, b, last))
    for h, name, word in (
            (with_offsets(b, b0 + 2, b1 + 2), b, "hole"),
            (with_offsets(b, b0 - 2, b1 - 2), b, "overlap"),
            (with_offsets(b, a0, a0 + b1 - b0), b if b1 - b0 >= a1 - a0 else a, ""),
            (with_offsets(last, l0, l1 + 2), last, "needs"),
            (with_offsets(last, l0, l1 - 2), last, "needs"),
            (with_offsets(last, l1, l0), last, "before their begin"),
            (with_offsets(a, 0, 0, shape=[0]), b, "hole"),
            (with_offsets(last, l0, l1, shape=[2**62, 2**62]), last, "overflow"),
            (with_offsets(last, l0, l1, shape=[0, 2**62, 2**62]), last, "needs"),
            (with_offsets(last, 2**62, 2**62 + l1 - l0), last, "hole"),
            (with_offsets(last, -2, l1 - l0 - 2), last, "negative"),
            (with_offsets(last, 0.0, l1 - l0), last, "not an integer"),
            (with_offsets(last, l0, l1, shape=[1] * 9), last, "dimensions"),
            (with_offsets(last, l0, l1, dtype="F9"), last, "F9")):
        put_header(m, SECOND, json.dumps(h), data)
        refused(p, m, SECOND, name, word)
    put_header(m, SECOND, json.dumps(right), data[:-1])
    refused(p, m, SECOND, "cut")
    put_header(m, SECOND, json.dumps(right), data + b"\0")
    refused(p, m, SECOND, "no tensor owns")
    doubled = json.dumps(right)[:-1] + "," + json.dumps({a: right[a]})[1:]
    put_header(m, SECOND, doubled, data)
    refused(p, m, SECOND, a, "given twice")


@test
def a_tensor_in_two_files_or_twice_in_the_map_is_refused(p):
    m = p.model()
    name = next(iter(m.files[FIRST]))
    m.files[SECOND][name] = m.files[FIRST][name]
    m.save()
    refused(p, m, INDEX, name, "two files", FIRST, SECOND)
    (m.folder / INDEX).unlink()
    refused(p, m, name, "more than once")
    m = p.model()
    index = m.index()
    where = json.dumps(index["weight_map"][name])
    text = json.dumps(index).replace(f'"weight_map": {{', f'"weight_map": {{"{name}": {where}, ')
    (m.folder / INDEX).write_text(text)
    refused(p, m, INDEX, name, "twice")


@test
def a_source_that_shrinks_under_the_import_is_an_error(p):
    """The header is right when it is read; the data are gone when they are wanted."""
    m = p.model()
    size = (m.folder / SECOND).stat().st_size
    out = p.new("out")
    # The file is cut between the two by a link that is moved: the plan saw another file.
    works("glm-import", "--quiet", "--dry-run", m.folder, out)
    os.truncate(m.folder / SECOND, size - 4096)
    refused(p, m, SECOND, "cut")


# ---- running ------------------------------------------------------------------------------------

def main(names):
    top = pathlib.Path(tempfile.mkdtemp(prefix="glm-hostile-"))
    Place.shared = top
    passed = failed = 0
    try:
        for t in tests:
            if names and t.__name__ not in names:
                continue
            place = Place(top)
            try:
                t(place)
                passed += 1
                print(f"ok {t.__name__}", flush=True)
            except Exception as why:  # a test that breaks has failed; the others go on
                failed += 1
                kind = "" if isinstance(why, Failure) else f"{type(why).__name__}: "
                print(f"FAIL {t.__name__}: {kind}{' '.join(str(why).split())}", flush=True)
            shutil.rmtree(place.top, ignore_errors=True)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main([a for a in sys.argv[1:] if a != "--long"]))
