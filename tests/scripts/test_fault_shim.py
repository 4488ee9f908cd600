#!/usr/bin/env python3
"""The fault shim itself: does it fail, kill, cut short and forget exactly what it says?

A probe changes files in a known way with and without fsync; what is left is compared with what the
rules of tests/fault/undo.h say must be left. If the shim were blind, every sweep would pass."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHIM = ROOT / "build/release/libfault.so"

PROBE = r'''
import os, sys, threading
os.chdir(sys.argv[1])
def put(name, data, sync=True, at=0, flags=os.O_CREAT):
    fd = os.open(name, os.O_RDWR | flags, 0o644)
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], at + done)
    if sync: os.fsync(fd)
    os.close(fd)
def sync(folder):
    fd = os.open(folder, os.O_RDONLY); os.fsync(fd); os.close(fd)
exec(sys.argv[2])
'''


def run(code, before=(), **env):
    """Runs code in a fresh folder; (status, {path: bytes, folders None}, log lines)."""
    with tempfile.TemporaryDirectory() as top:
        folder = pathlib.Path(top) / "root"
        folder.mkdir()
        for name, data in before:
            (folder / name).write_bytes(data)
        e = dict(os.environ, LD_PRELOAD=str(SHIM), FAULT_ROOT=str(folder),
                 FAULT_LOG=f"{top}/log", PYTHONDONTWRITEBYTECODE="1",
                 **{f"FAULT_{k.upper()}": str(v) for k, v in env.items()})
        r = subprocess.run([sys.executable, "-S", "-c", PROBE, str(folder), code], env=e,
                           stderr=subprocess.PIPE)
        left = {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
                for p in folder.rglob("*")}
        strays = [p for p in os.listdir(top) if "stash" in p]
        if strays and r.returncode >= 0:
            raise AssertionError(f"left behind: {strays}")
        log = pathlib.Path(f"{top}/log").read_text().splitlines()
        return r.returncode, left, log, r.stderr.decode()


CASES = []


def case(f):
    CASES.append(f)
    return f


@case
def calls_are_counted_in_order():
    rc, left, log, _ = run("put('a', b'x'); os.rename('a', 'b'); sync('.')")
    assert rc == 0 and left == {"b": b"x"}
    assert [l.split()[1] for l in log] == ["create", "pwrite", "fsync", "rename", "fsync"], log


@case
def kill_comes_before_the_call():
    rc, left, *_ = run("put('a', b'x'); os.rename('a', 'b')", mode="kill", at=4)
    assert rc == -signal.SIGKILL and left == {"a": b"x"}, (rc, left)


@case
def tear_leaves_half_of_the_write():
    rc, left, *_ = run("put('a', b'0123456789')", mode="tear", at=2)
    assert rc == -signal.SIGKILL and left == {"a": b"01234"}, (rc, left)


@case
def short_writes_are_continued():
    rc, left, log, _ = run("put('a', b'0123456789')", mode="short", at=2)
    assert rc == 0 and left == {"a": b"0123456789"} and len(log) == 4, (rc, left, log)


@case
def enospc_stays_and_eio_goes():
    code = """
for i in range(3):
    try: put('f%d' % i, b'x')
    except OSError as e: os.write(2, b'%d ' % e.errno)
"""
    _, left, _, err = run(code, mode="enospc", at=2)
    assert err.split() == ["28", "28", "28"] and set(left) == {"f0"}, (left, err)
    _, left, _, err = run(code, mode="eio", at=2)
    assert err.split() == ["5"] and left["f1"] == b"x" and left["f0"] == b"", (left, err)
    _, left, _, err = run(code, mode="edquot", at=1)
    assert err.split() == ["122"] * 3 and left == {}, (left, err)


@case
def power_loss_undoes_what_no_fsync_covered():
    old = [("old", b"AAAA"), ("gone", b"G"), ("over", b"O")]
    code = """
put('old', b'BB', at=1); put('old', b'CCCCCC', sync=False, at=2)
put('new', b'x'); sync('.'); put('lost', b'y')
os.unlink('gone'); os.rename('new', 'over'); os.mkdir('d'); put('d/e', b'z'); sync('d')
"""
    rc, left, *_ = run(code, before=old, mode="power", at=999)
    assert rc == 137, rc
    assert left == {"old": b"ABBA", "gone": b"G", "over": b"O", "new": b"x"}, left


@case
def power_loss_keeps_what_was_synced():
    code = "put('a', b'x'); os.mkdir('d'); put('d/e', b'z'); sync('d'); os.rename('d', 'f'); sync('.')"
    rc, left, *_ = run(code, mode="power", at=999)
    assert rc == 137 and left == {"a": b"x", "f": None, "f/e": b"z"}, left


@case
def power_loss_at_k_forgets_the_rest():
    code = "put('a', b'x'); sync('.'); put('a', b'yy', sync=False); put('b', b'z')"
    for k, want in ((1, {}), (4, {}), (5, {"a": b"x"}), (6, {"a": b"x"}), (7, {"a": b"x"})):
        rc, left, *_ = run(code, mode="power", at=k)
        assert rc == 137 and left == want, (k, left)


@case
def names_or_bytes_alone_can_be_lost():
    code = "put('a', b'xyz', sync=False); os.rename('a', 'b')"
    assert run(code, mode="power", at=999, lose="data")[1] == {"b": b""}
    code = "put('a', b'xyz', sync=False); sync('.'); os.rename('a', 'b')"
    assert run(code, mode="power", at=999, lose="names")[1] == {"a": b"xyz"}


@case
def a_skipped_fsync_covers_nothing():
    code = "put('shard-0', b'x'); put('index', b'y'); sync('.')"
    assert run(code, mode="power", at=999, skip_sync="shard-*")[1] == {"shard-0": b"", "index": b"y"}
    assert run(code, mode="power", at=999, skip_sync="parent")[1] == {}
    code = "os.mkdir('d'); sync('.'); put('d/a', b'x'); sync('d')"
    assert run(code, mode="power", at=999, skip_sync=".")[1] == {"d": None}


@case
def direct_writes_and_threads_are_undone_too():
    code = """
import mmap
def work(i):
    m = mmap.mmap(-1, 8192); m.write(bytes([65 + i]) * 8192)
    try: fd = os.open('t%d' % i, os.O_RDWR | os.O_DIRECT)
    except OSError: fd = os.open('t%d' % i, os.O_RDWR)
    for k in range(4): os.pwrite(fd, m, 8192 * k)
    if i % 2: os.fsync(fd)
t = [threading.Thread(target=work, args=(i,)) for i in range(4)]
[x.start() for x in t]; [x.join() for x in t]
"""
    before = [(f"t{i}", b"o" * 5000) for i in range(4)]
    rc, left, *_ = run(code, before=before, mode="power", at=999)
    assert rc == 137
    for i in range(4):
        assert left[f"t{i}"] == (bytes([65 + i]) * 32768 if i % 2 else b"o" * 5000), i


@case
def exchange_is_undone():
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
assert libc.renameat2(-100, b'a', -100, b'b', 2) == 0
"""
    before = [("a", b"1"), ("b", b"2")]
    assert run(code, before=before)[1] == {"a": b"2", "b": b"1"}
    assert run(code, before=before, mode="power", at=999)[1] == dict(before)


def main():
    if not SHIM.exists():
        print(f"FAIL fault_shim: {SHIM} is not built")
        return 1
    failed = 0
    for f in CASES:
        try:
            f()
            print(f"ok {f.__name__}")
        except (AssertionError, KeyError) as e:
            failed = 1
            print(f"FAIL {f.__name__}: {e!r}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
