#!/usr/bin/env python3
"""Imports through the test hub that end in the middle: killed, stopped, raced, with a model that is large
enough for blocks to matter. The rerun completes, the result is equal, and no more is fetched twice
than a block of 64 MiB for each connection, by the hub's log.

    test_hub_resume.py [--kills N] [--seed N] [NAME...]

Power cuts (tests/fault/fault.c) undo what no fsync covered, so what a journal claims must be there.
Kills happen when the hub has sent a random number of bytes since the run began, some of them beyond
the last one, and at random times of a run. A chain of kills goes on from one to the next."""
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "hub"))
import cases  # noqa: E402
from cases import Hub, expect, merged, overlap, same, sent, tree  # noqa: E402

BLOCK = 64 << 20
CHAIN = 4


def number(option, default):
    return int(sys.argv[sys.argv.index(option) + 1]) if option in sys.argv else default


SHIM = cases.TOOLS.parent / "libfault.so"
KILLS, SEED = number("--kills", 12), number("--seed", int(time.time()))


def make(*more):
    """About 215 MB in two files, each larger than a block by far, most of it in two tensors."""
    import json
    config = json.loads((cases.ROOT / "fixtures/configs/t1.json").read_text())
    config["vocab_size"] = 200000
    path = pathlib.Path(f"/tmp/glm-hub-{os.getpid()}.json")
    path.write_text(json.dumps(config))
    try:
        return cases.Place("--config", path, "--files", "2", *more)
    finally:
        path.unlink()


class Books:
    """What was sent to each run, and that no run gets more again than it may."""

    def __init__(self, hub, connections):
        self.hub, self.allowed = hub, connections * BLOCK
        self.before, self.total = {}, 0

    def close(self, what):
        expect(self.hub.idle(), f"{what}: the hub is still sending")
        run = sent(self.hub.log, ("cdn",))
        headers = 70000  # of a file's first bytes, which each run reads to know its tensors
        again = {f: overlap(self.before.get(f, []), [(a, b) for a, b in run[f] if b > headers])
                 for f in run}
        expect(sum(again.values()) <= self.allowed and max(again.values(), default=0) <= BLOCK,
               f"{what}: {again} bytes were sent again; {self.allowed} in all and {BLOCK} of a file "
               "are allowed")
        for f in run:
            self.before[f] = merged(self.before.get(f, []) + run[f])
        self.total += sum(b - a for f in run for a, b in run[f])
        self.hub.log.clear()


def killed(p, hub, room, after, seconds, how=signal.SIGKILL, more=()):
    """A run that ends when so many bytes were sent, and so many seconds passed; its status."""
    options = ["--quiet", "--connections", str(hub.connections_asked), *more]
    c = cases.start(["glm-import", *options, "hf://test/model", room / "ckpt"], p.env(hub, room))
    began = hub.moved
    while hub.moved - began < after and c.poll() is None:
        time.sleep(0.0005)
    end = time.monotonic() + seconds
    while time.monotonic() < end and c.poll() is None:
        time.sleep(0.0005)
    c.send_signal(how)
    out, err = c.communicate(timeout=1800)
    expect(c.returncode in (-how, 0, 128 + how), f"status {c.returncode}: {out}{err}")
    return c.returncode, out, err


def chain(seed, kills):
    def test(p):
        choose = random.Random(seed)
        room = p.new()
        connections = choose.choice((1, 1, 2))
        more = ((), ("--keep", room / "kept"), ("--compress", "zstd"))[seed % 3]
        wanted = p.packed if "zstd" in more else p.local
        total = sum(e.size for e in p.revision.entries.values())
        with Hub(p.model) as hub:
            hub.connections_asked = connections
            books = Books(hub, connections)
            for i in range(kills):
                after = choose.choice((choose.randrange(1 << 20), choose.randrange(total),
                                       choose.randrange(total // 2), int(total * 0.46), total))
                seconds = choose.random() * choose.choice((0.01, 0.1, 0.5))
                status, _, _ = killed(p, hub, room, after, seconds, more=more)
                what = f"seed {seed}, kill {i} after {after} bytes, {connections} connections, {more}"
                books.close(what)
                if os.path.lexists(room / "ckpt"):  # a kill may come after all is done
                    same(tree(room / "ckpt"), wanted, f"{what}: it was done")
                    shutil.rmtree(room / "ckpt")
                    shutil.rmtree(room / "kept", ignore_errors=True)
                    books.before.clear()
                else:
                    expect(status != 0, f"{what}: no output")
            r = p.fetch(hub, room, "--quiet", "--connections", str(connections), *more)
            books.close(f"seed {seed}, the last run")
            expect(r.status == 0, str(r))
            same(tree(room / "ckpt"), wanted, "the checkpoint")
            expect(not os.path.lexists(room / "ckpt.partial"), "a partial folder is left")
            if (room / "kept").exists():
                same(tree(room / "kept"), tree(p.model), "the kept files")
    return test


def power_cuts(seed, cuts):
    def test(p):
        if not SHIM.exists():
            return f"{SHIM.name} is not built (make test-programs)"
        choose = random.Random(seed)
        room = p.new()
        shim = {"LD_PRELOAD": SHIM, "FAULT_ROOT": room, "FAULT_MODE": "power"}
        log = p.new("log") / "calls"
        with Hub(p.model) as hub:
            p.equal(room, p.fetch(hub, room, "--quiet", env={
                **shim, "FAULT_AT": 0, "FAULT_MODE": "count", "FAULT_LOG": log}))
            calls = len(log.read_text().splitlines())
            shutil.rmtree(room / "ckpt")
            hub.idle(), hub.log.clear()
            books = Books(hub, 2)
            for i in range(cuts):
                at = choose.randrange(1, calls + 1)
                lose = choose.choice(("all", "data", "names"))
                what = f"seed {seed}, cut {i} at change {at} of {calls}, losing {lose}"
                r = p.fetch(hub, room, "--quiet", "--connections", "2",
                            env={**shim, "FAULT_AT": at, "FAULT_LOSE": lose})
                expect(r.status in (0, 137), f"{what}: {r}")
                if os.path.lexists(room / "ckpt"):
                    same(tree(room / "ckpt"), p.local, f"{what}: an output is there")
                    shutil.rmtree(room / "ckpt")
                    hub.idle(), hub.log.clear(), books.before.clear()
                else:
                    books.close(what)
            p.equal(room, p.fetch(hub, room, "--quiet", "--connections", "2"))
            books.close(f"seed {seed}, the last run")
        return None
    return test


def test_interrupt_and_terminate_leave_what_goes_on(p):
    for how in (signal.SIGINT, signal.SIGTERM):
        room = p.new()
        with Hub(p.model, rate=25_000_000) as hub:  # seconds are left when the signal comes
            hub.connections_asked = 1
            books = Books(hub, 1)
            status, out, err = killed(p, hub, room, 25_000_000, 0, how)
            same(status, 128 + how, f"status {err}")
            same(out, "", "stdout")
            expect(len(err.strip().splitlines()) == 1 and "stopped by signal" in err, err)
            expect(not os.path.lexists(room / "ckpt"), "an output is there")
            books.close("stopped")
            hub.behave()
            p.equal(room, p.fetch(hub, room, "--quiet", "--connections", "1"))
            books.close("the rerun")
            expect(books.total < p.total + BLOCK, f"{books.total} bytes in all")


def test_a_kill_deep_in_a_file_costs_a_block(p):
    room = p.new()
    with Hub(p.model, rate=60_000_000) as hub:
        hub.connections_asked = 1
        books = Books(hub, 1)
        status, _, _ = killed(p, hub, room, 95_000_000, 0)
        same(status, -signal.SIGKILL, "status")
        books.close("killed")
        hub.options["rate"] = None
        p.equal(room, p.fetch(hub, room, "--quiet", "--connections", "1"))
        books.close("the rerun")


def a_disk_that_hangs(*more, connections):
    """The most that a kill can cost: everything that can wait in the process and in its sockets does."""
    def test(p):
        if not SHIM.exists():
            return f"{SHIM.name} is not built (make test-programs)"
        room, log = p.new(), p.new("log") / "calls"
        options = ["--quiet", "--connections", str(connections),
                   *(room / "kept" if m == "KEPT" else m for m in more)]
        shim = {"LD_PRELOAD": SHIM, "FAULT_ROOT": room}
        with Hub(p.model) as hub:
            r = p.fetch(hub, room, *options, env={**shim, "FAULT_LOG": log})
            expect(r.status == 0, str(r))
            first = next(int(line.split()[0]) for line in log.read_text().splitlines() if re.search(
                r" fdatasync .*(shard-[^/]*\.h5|\.safetensors\.part)$", line))
            shutil.rmtree(room / "ckpt"), shutil.rmtree(room / "kept", ignore_errors=True)
            hub.idle(), hub.log.clear()
            books = Books(hub, connections)
            for at in (first + 100, first, first + 20, first + 40):
                c = cases.start(["glm-import", *options, "hf://test/model", room / "ckpt"],
                                {**p.env(hub, room), **shim, "FAULT_MODE": "hang",
                                 "FAULT_AT": at})
                began, seen = hub.moved, None
                while (hub.moved == began or seen != hub.moved) and c.poll() is None:
                    seen = hub.moved
                    time.sleep(0.7)
                c.kill(), c.wait()
                books.close(f"hanging at change {at}")
                if os.path.lexists(room / "ckpt"):  # it was enough: fewer changes than in the first
                    break
            if not os.path.lexists(room / "ckpt"):
                r = p.fetch(hub, room, *options)
                expect(r.status == 0, str(r))
            books.close("the last run")
            same(tree(room / "ckpt"), p.packed if "zstd" in more else p.local, "the checkpoint")
        return None
    return test


def test_what_cannot_be_written_is_not_fetched_to_its_end(p):
    """With --keep: the disk fails at one of the first writes; the rest of the file is not for anyone."""
    if not SHIM.exists():
        return f"{SHIM.name} is not built (make test-programs)"
    room, log = p.new(), p.new("log") / "calls"
    shim = {"LD_PRELOAD": SHIM, "FAULT_ROOT": room, "FAULT_LOG": log}
    with Hub(p.model) as hub:
        options = ("--quiet", "--connections", "1", "--keep", room / "kept")
        p.equal(room, p.fetch(hub, room, *options, env={**shim, "FAULT_MODE": "count"}))
        k = next(line.split()[0] for line in log.read_text().splitlines()
                 if "write" in line and line.endswith(".safetensors.part"))
        shutil.rmtree(room / "ckpt"), shutil.rmtree(room / "kept")
        hub.idle(), hub.log.clear()
        r = p.fetch(hub, room, *options, env={**shim, "FAULT_MODE": "eio", "FAULT_AT": k})
        p.refused(room, r, "write", status=4)
        hub.idle()
        amount = sum(x["sent"] for x in hub.log)
        expect(amount < 50_000_000, f"{amount} bytes were sent after the first write had failed")
        p.equal(room, p.fetch(hub, room, *options))


def test_a_converted_source_costs_no_more(p):
    """Its files lie in the unfinished checkpoint until what was made of them is safe: killed just after
    one went, its results must be there."""
    q = make("--fp8", "16,16")
    try:
        options = ("--quiet", "--dtype", "bf16", "--connections", "1")
        snapshot = q.top / "home/hub/models--test--model/snapshots" / q.revision.commit
        cases.works("glm-import", *options[:3], snapshot, q.top / "wanted")
        room = q.new()
        with Hub(q.model, rate=150_000_000) as hub:
            books = Books(hub, 1)
            seen = 0
            for _ in range(6):
                c = cases.start(["glm-import", *options, "hf://test/model", room / "ckpt"],
                                q.env(hub, room))
                files, gone = set(), False
                while c.poll() is None and not gone:
                    there = set(room.glob("ckpt.partial/files/*.safetensors"))
                    gone = bool(files - there)
                    files |= there
                    time.sleep(0.0005)
                seen += gone
                c.kill(), c.wait()
                books.close("killed")
                if (room / "ckpt").exists():
                    break
            expect(seen, "no file went before the end")
            if not (room / "ckpt").exists():
                r = q.fetch(hub, room, *options)
                expect(r.status == 0, str(r))
            books.close("the last run")
            same(tree(room / "ckpt"), tree(q.top / "wanted"), "the checkpoint")
    finally:
        q.close()


def test_two_processes_do_not_share_a_partial_checkpoint(p):
    room = p.new()
    with Hub(p.model, rate=60_000_000) as hub:
        first = cases.start(["glm-import", "--quiet", "hf://test/model", room / "ckpt"],
                            p.env(hub, room))
        while hub.moved < 20_000_000 and first.poll() is None:
            time.sleep(0.002)
        for options in ((), ("--restart",), ("--replace",)):
            r = p.fetch(hub, room, "--quiet", *options)
            expect(r.status != 0 and r.out == "" and len(r.err.strip().splitlines()) == 1
                   and "ckpt.partial" in r.err, f"a second process: {r}")
            expect(first.poll() is None, "the first has ended")
        out, err = first.communicate(timeout=1800)
        same(first.returncode, 0, f"the first: {err}")
        same(tree(room / "ckpt"), p.local, "the checkpoint of the first")


def test_a_branch_that_moves_between_two_runs_is_not_mixed_in(p):
    room, other = p.new(), p.new("other")
    for e in p.revision.entries.values():
        os.link(e.real, other / e.path)
    (other / "README.md").unlink()
    (other / "README.md").write_text("another commit\n")
    name = next(n for n in p.revision.entries if n.endswith(".safetensors"))
    with Hub(p.model, moves={"after": 1 << 60, "to": str(other)}) as hub:
        hub.connections_asked = 1
        killed(p, hub, room, 60_000_000, 0)
        hub.options["moves"]["after"] = 0
        r = p.fetch(hub, room, "--quiet")
        expect(r.status == 2 and f"hf://test/model@{p.revision.commit} to finish it" in r.err
               and "--restart" in r.err, f"what to type for the old commit: {r} {name}")
        r = p.fetch(hub, room, "--quiet", "--tp", "2", spec=f"hf://test/model@{p.revision.commit}")
        expect(r.status == 2 and "another plan" in r.err, f"other options go on: {r}")
        r = p.fetch(hub, room, "--quiet", spec=f"hf://test/model@{p.revision.commit}")
        p.equal(room, r)


def test_a_branch_that_moves_within_a_run_changes_nothing(p):
    room, other = p.new(), p.new("other")
    for e in p.revision.entries.values():
        os.link(e.real, other / e.path)
    (other / "LICENSE").unlink()
    (other / "LICENSE").write_text("other terms\n")
    for after in (1, 4):
        with Hub(p.model, moves={"after": after, "to": str(other)}) as hub:
            p.equal(room, p.fetch(hub, room, "--quiet", "--replace"))


def test_the_hub_that_fails_in_the_middle_costs_a_block(p):
    """All retries used up at half of a file; the rerun begins there."""
    room = p.new()
    with Hub(p.model, scenario={"rules": [
            {"on": "cdn", "method": "GET", "do": "drop", "after": 50_000_000},
            {"on": "cdn", "method": "GET", "skip": 4, "do": "status", "status": 503}]}) as hub:
        books = Books(hub, 1)
        r = p.fetch(hub, room, "--quiet", "--connections", "1", "--retries", "1")
        p.refused(room, r, status=4)
        books.close("the failure")
        hub.behave()
        p.equal(room, p.fetch(hub, room, "--quiet", "--connections", "1"))
        books.close("the rerun")


def test_a_limit_of_the_rate_is_kept(p):
    """A lower bound of time alone: a slow machine does not break it."""
    room = p.new()
    with Hub(p.model) as hub:
        began = time.monotonic()
        p.equal(room, p.fetch(hub, room, "--quiet", "--limit-rate", "60MB"))
        took = time.monotonic() - began
        expect(took > 0.8 * p.total / 60e6 - 0.5, f"{p.total} bytes at 60 MB/s in {took:.2f} s")


TESTS = [(n, f) for n, f in list(globals().items()) if n.startswith("test_")]
TESTS += [(f"test_a_disk_that_hangs_costs_a_block_{word}", a_disk_that_hangs(*more, connections=n))
          for word, n, *more in (("plain", 1), ("plain_two", 2), ("kept", 1, "--keep", "KEPT"),
                                 ("packed", 2, "--compress", "zstd"))]
TESTS += [(f"kills_{SEED + i}", chain(SEED + i, min(CHAIN, KILLS - i * CHAIN)))
          for i in range((KILLS + CHAIN - 1) // CHAIN)]
TESTS += [(f"power_cuts_{SEED + i}", power_cuts(SEED + i, 4)) for i in range(max(1, KILLS // 20))]


def place():
    p = make()
    p.total = sum(e.size for e in p.revision.entries.values())
    snapshot = p.top / "home/hub/models--test--model/snapshots" / p.revision.commit
    cases.works("glm-import", "--quiet", "--compress", "zstd", snapshot, p.top / "packed")
    p.packed = tree(p.top / "packed")
    return p


if __name__ == "__main__":
    words = [w for i, w in enumerate(sys.argv[1:], 1)
             if not w.startswith("--") and sys.argv[i - 1] not in ("--kills", "--seed")]
    sys.exit(cases.main([t for t in TESTS if not words or t[0] in words], ["--all"], 3, place))
