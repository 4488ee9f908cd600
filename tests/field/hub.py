"""F: downloads, through the test hub (tests/hub/). Also the parts of B-59, B-62 and B-71 that lie there."""
import atexit
import os
import pathlib
import re
import shutil
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "hub"))
import cases  # noqa: E402
from cases import QUICK, TOKEN, Hub  # noqa: E402
from harness import expect, report, same, tree  # noqa: E402

SECOND = "model-00002-of-00004.safetensors"
shared = []


def place():
    """The model, its local import and rooms for the reports below."""
    if not shared:
        shared.append(cases.Place())
        atexit.register(shared[0].close)
    return shared[0]


def bodies(hub, file=None):
    """The GETs of data beyond the headers: (from, sent, status)."""
    hub.idle()
    return [(x["from"], x["sent"], x["status"]) for x in hub.log
            if x["kind"] == "cdn" and x["method"] == "GET" and x["sent"] != 65536
            and (file is None or x["file"] == file)]


@report("B-55")
def content_that_only_has_the_right_size_is_not_accepted(_):
    """One flipped byte: found by the digest, fetched once more, then an error; nothing is placed."""
    p = place()
    room = p.new()
    with Hub(p.model, scenario="flips") as hub:
        r = p.fetch(hub, room, "--quiet", "--keep", room / "kept")
        p.refused(room, r, SECOND, "digest", status=4)
        same(len(bodies(hub, SECOND)), 2, "times that the file was fetched")
        kept = room / "kept" / SECOND
        expect(not kept.exists(), "the wrong file is placed")
        room2 = p.new()
        hub.log.clear()
        p.refused(room2, p.fetch(hub, room2, "--quiet"), SECOND, "digest", status=4)
        same(len(bodies(hub, SECOND)), 2, "times that the file was fetched")
        hub.behave()
        p.equal(room2, p.fetch(hub, room2, "--quiet"))
        p.equal(room, p.fetch(hub, room, "--quiet", "--keep", room / "kept"))
        same(kept.read_bytes(), (p.model / SECOND).read_bytes(), "the kept file")
    room = p.new()
    with Hub(p.model, scenario="flips-once") as hub:
        p.equal(room, p.fetch(hub, room, "--quiet"))
        same({f for f, _ in [(x["file"], 0) for x in hub.log if x["kind"] == "cdn"]},
             {f"model-0000{i}-of-00004.safetensors" for i in range(1, 5)}, "files")


@report("B-56")
def a_range_that_is_ignored_begins_again_once(_):
    """The body is cut, the rest is asked for, all of it comes: no loop, no bytes twice in the file."""
    p = place()
    room = p.new()
    cut = {"on": "cdn", "method": "GET", "file": SECOND, "do": "drop", "after": 1000000, "skip": 1,
           "times": 1}
    with Hub(p.model, scenario={"rules": [
            {"on": "cdn", "file": SECOND, "do": "ignore_range"}, cut]}) as hub:
        p.equal(room, p.fetch(hub, room, "--quiet"))
        size = (p.model / SECOND).stat().st_size
        found = bodies(hub, SECOND)  # the header's request gets all of it too
        same({b[0] for b in found[1:]}, {0}, "where the bodies begin")
        same({b[2] for b in found}, {200}, "statuses")
        same([b[1] for b in found[1:]], [1000000, size], "bodies: one cut, one whole")


@report("B-58")
def mirrors_work_and_get_no_token_of_another_host(_):
    p = place()
    for scenario in ("mirror-late", "mirror-no-length", "mirror-bare", "mirror-links"):
        room = p.new()
        with Hub(p.model, scenario=scenario) as hub:
            p.equal(room, p.fetch(hub, room, "--quiet", env={"HF_TOKEN": TOKEN}))
            hub.idle()
            expect(all(x["server"] == "hub" for x in hub.log if x["auth"]),
                   f"{scenario}: the token went to another host")
            expect(any(x["auth"] for x in hub.log), f"{scenario}: the token was not used")
            expect(any(x["server"] == "cdn" for x in hub.log), f"{scenario}: no other host")


@report("B-59-hub")
def what_is_no_safetensors_file_is_named_at_a_hub_too(_):
    """The repository itself holds them, so that every digest is right."""
    p = place()
    whole = (p.model / SECOND).read_bytes()
    pointer = (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 +
               b"\nsize 3089416\n")
    for data, sentence in ((pointer, "LFS"), (b"", "empty"), (b"<!DOCTYPE html><html>", "HTML"),
                           (b"\x1f\x8b\x08" + bytes(5000), "gzip"),
                           (whole[:len(whole) // 2], f"{len(whole) // 2} are there")):
        room = p.new()
        shutil.copytree(p.model, room / "model")
        (room / "model" / SECOND).write_bytes(data)
        with Hub(room / "model") as hub:
            p.refused(room, p.fetch(hub, room, "--quiet"), SECOND, sentence, status=3)
    room = p.new()  # and a page of HTML with status 200 that the hub never listed
    with Hub(p.model, scenario="html") as hub:
        p.refused(room, p.fetch(hub, room, "--quiet", *QUICK), "HTML", status=4)


@report("B-61")
def a_stall_is_told_and_ended(_):
    """Silence after half of each range: a message, another attempt with a range, then an error."""
    p = place()
    default = re.search(r"stall-limit.*?default (\d+)", cases.ended(
        ["glm-import", "--help"], cases.clean_env()).out, re.S)
    expect(default and int(default[1]) <= 30, "by default a stall is told within 30 s")
    room = p.new()
    with Hub(p.model, scenario={"rules": [{"on": "cdn", "method": "GET", "file": SECOND, "skip": 1,
                                           "do": "stall", "after": 1000000}]}) as hub:
        c = cases.start(["glm-import", "--retries", "1", "--stall-limit", "1", "hf://test/model",
                         room / "ckpt"], p.env(hub, room))
        end = threading.Timer(60, c.kill)
        end.start()
        told = "nothing yet"
        while told and "nothing came for" not in told:
            told = c.stderr.readline()
        if "nothing came for" not in told:
            end.cancel(), c.kill()
        expect("nothing came for 1 s" in told and SECOND in told and "tries again" in told,
               f"no message of the stall: {told}")
        out, err = c.communicate()
        end.cancel()
        same(c.returncode, 4, f"status {err}")
        same(out, "", "stdout")
        tries = bodies(hub, SECOND)
        expect(len(tries) == 2 and tries[1][0] > tries[0][0] and tries[1][2] == 206,
               f"the second attempt does not go on: {tries}")
        expect(not os.path.lexists(room / "ckpt"), "an output is there")
        hub.behave()
        p.equal(room, p.fetch(hub, room, "--quiet"))


@report("B-62-hub")
def neither_output_nor_kept_files_go_through_a_link_into_the_cache(_):
    p = place()
    room = p.new()
    snapshot = p.cache(room / "hf")
    name = sorted(f.name for f in snapshot.glob("*.safetensors"))[0]
    blob = (snapshot / name).resolve()
    before = tree(room / "hf")
    with Hub(p.model) as hub:
        for target in (snapshot, blob, room / "hf"):
            (room / "ckpt").symlink_to(target)
            for options in ((), ("--replace",), ("--restart",)):
                r = p.fetch(hub, room, "--quiet", *options)
                expect(r.status == 2 and "symbolic link" in r.err, str(r))
            (room / "ckpt").unlink()
        same(tree(room / "hf"), before, "the cache")
        # A folder for kept files whose names are links to blobs: one that is cut, so that it would
        # have to be written, and one that is gone, so that it would have to be made.
        (snapshot / name).unlink()
        for change in (lambda: os.truncate(blob, 1000), blob.unlink):
            change()
            before = tree(room / "hf")
            kept = p.new("kept")
            (kept / name).symlink_to(blob)
            r = p.fetch(hub, room, "--quiet", "--replace", "--keep", kept)
            same(tree(room / "hf"), before, f"the cache, through a link in the kept files: {r}")
            expect(r.status == 0 or name in r.err, f"no reason: {r}")
        (room / "kept2").symlink_to(snapshot)
        r = p.fetch(hub, room, "--quiet", "--replace", "--keep", room / "kept2")
        same(tree(room / "hf"), before, f"the cache, through a link to it: {r}")
        expect(r.status == 2 and "symbolic link" in r.err, str(r))


@report("B-71-hub")
def names_of_a_hub_cannot_leave_the_folder(_):
    p = place()
    for name in ("name-parent", "name-deep-parent", "name-absolute", "name-backslash", "name-unc",
                 "name-nul", "name-reserved", "name-newline"):
        room = p.new()
        with Hub(p.model, scenario=name) as hub:
            r = p.fetch(hub, room, "--quiet", "--keep", room / "kept")
            p.refused(room, r, status=3)
            expect(not list(room.parent.glob("escaped*")) and not os.path.exists("/tmp/escaped.txt"),
                   f"{name} escaped")
            expect(not os.path.lexists(room / "kept") or not os.listdir(room / "kept"),
                   f"{name}: files are kept of it")
