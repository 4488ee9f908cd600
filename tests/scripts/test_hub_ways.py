#!/usr/bin/env python3
"""The ways in which an import takes a model from the hub: kept files, compressed output, some layers and
experts, other types and topologies. Each equals the import of the local folder byte for byte, and
fetches no more than it must."""
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "hub"))
import cases  # noqa: E402
from cases import QUICK, Hub, expect, merged, same, sent, tree, works  # noqa: E402

CONFIGS = cases.ROOT / "fixtures/configs"


def through_both(p, hub, snapshot, *options, more=()):
    """The same import from the cache-shaped folder and through the hub; the log's data intervals."""
    room = p.new()
    works("glm-import", "--quiet", *options, snapshot, room / "local")
    hub.log.clear()
    r = p.fetch(hub, room, "--quiet", *options, *more)
    expect(r.status == 0, str(r))
    same(tree(room / "ckpt"), tree(room / "local"), f"with {options} {more}")
    expect(not os.path.lexists(room / "ckpt.partial"), "a partial folder is left")
    hub.idle()
    return {f: merged(i) for f, i in sent(hub.log, ("cdn",)).items()}


def amount(intervals):
    return sum(b - a for i in intervals.values() for a, b in i)


def originals(p, kept):
    """The kept files are the repository's."""
    same(tree(kept), {n: v for n, v in tree(p.model).items()}, "the kept files")


def test_topologies_types_and_packing(p):
    snapshot = p.top / "home/hub/models--test--model/snapshots" / p.revision.commit
    with Hub(p.model, page=5) as hub:
        for options in (("--tp", "2", "--pp", "2", "--ep", "2"), ("--dtype", "mxfp8"),
                        ("--dtype", "fp8", "--tp", "2"), ("--dtype", "f32", "--threads", "1"),
                        ("--compress", "zstd"), ("--compress", "zstd", "--ep", "2"),
                        ("--shard-size", "1M"), ("--no-mtp",)):
            through_both(p, hub, snapshot, *options)
            through_both(p, hub, snapshot, *options, more=("--connections", "1"))


def test_other_sources(p):
    """Fused experts, FP8 with scales of their own, one file without an index."""
    for options in (("--fused",), ("--fp8", "16,16"), ("--mx", "u8"), ("--no-mtp",)):
        q = p.new("source")
        works(cases.TOOLS / "toy", "--config", CONFIGS / "t1.json", "--out", q / "m", "--files",
              "1" if options == ("--fused",) else "3", *options)
        with Hub(q / "m") as hub:
            home = q / "home"
            other = type("P", (), {"revision": cases.Revision(q / "m")})()
            snapshot = cases.Place.cache(other, home)
            extra = ("--no-mtp",) if options == ("--no-mtp",) else ()
            through_both(p, hub, snapshot, *extra)
            if "--fp8" in options:
                through_both(p, hub, snapshot, "--dtype", "bf16")
                through_both(p, hub, snapshot, "--dtype", "mxfp8", "--compress", "zstd")


def test_what_no_digest_covered_is_fetched_and_written_again(p):
    """A run is stopped in the middle of files whose bytes came wrong. The rest comes right, and so do the
    bytes that the rerun reads again for the digest: tiles of the first answer must not stay."""
    room = p.new()
    wrong = [{"on": "cdn", "method": "GET", "do": "flip", "at": at} for at in
             range(70000, 900000, 20000)]
    with Hub(p.model, scenario={"rules": [
            *wrong, {"on": "cdn", "method": "GET", "do": "stall", "after": 900000}]}) as hub:
        c = cases.start(["glm-import", "--quiet", "hf://test/model", room / "ckpt"],
                        p.env(hub, room))
        quiet, seen = time.monotonic(), -1
        while time.monotonic() - quiet < 1 and c.poll() is None:
            if hub.moved != seen:
                quiet, seen = time.monotonic(), hub.moved
            time.sleep(0.05)
        c.terminate()
        _, err = c.communicate(timeout=60)
        same(c.returncode, 143, f"status: {err}")
        expect("done " in (room / "ckpt.partial/journal").read_text(), "nothing was written")
        hub.behave()
        p.equal(room, p.fetch(hub, room, "--quiet"))


def test_what_comes_after_what_was_asked_for_is_not_waited_for(p):
    """A header is asked for by a range, the whole file is announced, and behind the range it stalls."""
    room = p.new()
    with Hub(p.model, scenario={"rules": [
            {"on": "cdn", "method": "GET", "each": True, "times": 1, "do": "ignore_range"},
            {"on": "cdn", "method": "GET", "each": True, "times": 1, "do": "stall",
             "after": 65536}]}) as hub:
        p.equal(room, p.fetch(hub, room, "--quiet", "--retries", "0", "--stall-limit", "2"))


def test_converted_sources_are_compared_too(p):
    """Weights that are decoded with scales from elsewhere: a wrong byte of either is found."""
    q = p.new("source")
    works(cases.TOOLS / "toy", "--config", CONFIGS / "t1.json", "--out", q / "m", "--files", "3",
          "--fp8", "16,16")
    for at in (250000, -5):
        for options in (("--dtype", "bf16"), ("--dtype", "mxfp8"), ("--dtype", "fp8")):
            room = p.new()
            with Hub(q / "m", scenario={"rules": [{"on": "cdn", "method": "GET", "do": "flip",
                                                   "file": "*00002*", "at": at}]}) as hub:
                p.refused(room, p.fetch(hub, room, "--quiet", *options), "digest", "00002",
                          status=4)


def test_some_layers_and_experts_cost_only_their_bytes(p):
    snapshot = p.top / "home/hub/models--test--model/snapshots" / p.revision.commit
    headers = 4 * 65536
    with Hub(p.model) as hub:
        for options in (("--layers", "0-1"), ("--experts", "0-3"),
                        ("--layers", "0-1", "--experts", "2-5,11")):
            room = p.new()
            works("glm-import", "--quiet", *options, snapshot, room / "x")
            need = sum(f.stat().st_size for f in (room / "x").glob("shard*"))
            got = amount(through_both(p, hub, snapshot, *options))
            gaps = 64 * 1024 * 40  # bytes between wanted ranges that are cheaper to read
            expect(got <= need + headers + gaps and got < 0.8 * p.total,
                   f"{options}: {got} bytes of {p.total} were fetched, {need} are in the result")


def test_kept_files_are_the_originals(p):
    room = p.new()
    with Hub(p.model) as hub:
        r = p.fetch(hub, room, "--quiet", "--keep", room / "kept")
        p.equal(room, r)
        originals(p, room / "kept")
        before = {f.name: f.stat().st_mtime_ns for f in (room / "kept").iterdir()}
        hub.idle(), hub.log.clear()
        p.equal(room, p.fetch(hub, room, "--quiet", "--replace", "--keep", room / "kept"))
        hub.idle()
        again = {f: [i for i in v if i[1] > 70000] for f, v in sent(hub.log, ("cdn",)).items()}
        same([f for f, v in again.items() if v], [], "files that were fetched though kept")
        originals(p, room / "kept")
        same({f.name: f.stat().st_mtime_ns for f in (room / "kept").iterdir()
              if f.suffix == ".safetensors"},
             {n: t for n, t in before.items() if n.endswith(".safetensors")}, "times of kept files")
        # A kept file that is cut, and one with a wrong byte: neither is believed.
        names = sorted(f.name for f in (room / "kept").glob("*.safetensors"))
        os.truncate(room / "kept" / names[0], 100000)
        with open(room / "kept" / names[1], "r+b") as f:
            f.seek(1000000)
            byte = f.read(1)
            f.seek(1000000)
            f.write(bytes([byte[0] ^ 1]))
        r = p.fetch(hub, room, "--quiet", "--replace", "--keep", room / "kept")
        if r.status == 0:
            p.equal(room, r)
            originals(p, room / "kept")
        else:
            expect(r.status in (2, 3) and (names[0] in r.err or names[1] in r.err), str(r))


def test_kept_files_under_faults(p):
    for scenario in ("drops", "range-ignored", "flips-once", "short-ranges", "chunked",
                     "link-expires", "busy"):
        room = p.new()
        with Hub(p.model, scenario=scenario) as hub:
            p.equal(room, p.fetch(hub, room, "--quiet", "--keep", room / "kept"))
            originals(p, room / "kept")
    for scenario in ("flips", "always-drops", "html", "range-shifted-silently"):
        room = p.new()
        with Hub(p.model, scenario=scenario) as hub:
            r = p.fetch(hub, room, "--quiet", *QUICK, "--keep", room / "kept")
            p.refused(room, r, status=4)
            for f in room.glob("kept/*.safetensors"):  # only what is whole and right has its name
                same(f.read_bytes(), (p.model / f.name).read_bytes(), f.name)
            hub.behave()
            p.equal(room, p.fetch(hub, room, "--quiet", "--keep", room / "kept"))
            originals(p, room / "kept")


def test_compressed_output_under_faults(p):
    snapshot = p.top / "home/hub/models--test--model/snapshots" / p.revision.commit
    for scenario in ("drops", "flips-once", "short-ranges", "range-ignored"):
        with Hub(p.model, scenario=scenario) as hub:
            through_both(p, hub, snapshot, "--compress", "zstd")
    room = p.new()
    with Hub(p.model, scenario="flips") as hub:
        p.refused(room, p.fetch(hub, room, "--quiet", "--compress", "zstd"), "digest", status=4)
        hub.behave()
        r = p.fetch(hub, room, "--quiet", "--compress", "zstd")
        expect(r.status == 0, str(r))
        works("glm-verify", "diff", room / "ckpt", p.top / "local")


def test_a_dry_run_fetches_headers_alone(p):
    room = p.new()
    with Hub(p.model) as hub:
        r = p.fetch(hub, room, "--dry-run")
        expect(r.status == 0 and "124" in r.out, str(r))
        hub.idle()
        expect(amount({f: merged(i) for f, i in sent(hub.log, ("cdn",)).items()}) <= 4 * 65536,
               "more than headers")
        expect(not list(room.glob("ckpt*")), "something was written")


def make():
    p = cases.Place()
    p.total = sum(e.size for e in p.revision.entries.values())
    return p


TESTS = [(n, f) for n, f in list(globals().items()) if n.startswith("test_")]

if __name__ == "__main__":
    sys.exit(cases.main(TESTS, make=make))
