"""How the benchmarks measure: a command beside the limit of the device, pair by pair.

Disk. The limit is dd bs=8M iflag=direct oflag=direct conv=fsync of the same bytes in the same
folder. dd and the command alternate, caches are dropped before each. A line holds if
    best(ours) >= r * best(limit)  and  median(ours) >= (r - 0.1) * median(limit);
a run whose limit varies more than threefold is void.

CPU. user + system seconds per GB, against that of dd plus one pass of openssl's SHA-256.

Memory. The peak of the process tree: VmHWM of each process, summed, sampled; and what the kernel
says at the end, whichever is more."""
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import threading
import time

import results

ROOT = pathlib.Path(results.HERE).parents[1]
BIN = pathlib.Path(os.environ.get("BIN", ROOT / "build/release/bin")).resolve()
TOOLS = pathlib.Path(os.environ.get("TOOLS", ROOT / "build/release/tools")).resolve()
CONFIGS = ROOT / "fixtures/configs"


class Run:
    """One finished command: seconds, cpu (user + system), peak_mb, status, out, err."""

    def __init__(self, words, cwd=None, check=True):
        self.words = [str(w) for w in words]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            began = time.monotonic()
            p = subprocess.Popen(self.words, cwd=cwd, stdout=out, stderr=err)
            peak, done = [0], threading.Event()
            watcher = threading.Thread(target=watch, args=(p.pid, peak, done))
            watcher.start()
            _, status, usage = os.wait4(p.pid, 0)
            self.seconds = time.monotonic() - began
            p.returncode = os.waitstatus_to_exitcode(status)
            done.set()
            watcher.join()
            out.seek(0)
            err.seek(0)
            self.out = out.read().decode(errors="replace")
            self.err = err.read().decode(errors="replace")
        self.status = p.returncode
        self.cpu = usage.ru_utime + usage.ru_stime
        self.peak_mb = max(peak[0], usage.ru_maxrss) / 1024
        if check and self.status != 0:
            raise SystemExit(f"{' '.join(self.words)} ended {self.status}: {self.err[-500:]}")


def children(pid):
    out = [pid]
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as f:
                for child in f.read().split():
                    out += children(int(child))
    except (FileNotFoundError, ProcessLookupError):
        pass
    return out


def watch(pid, peak, done):
    while not done.wait(0.02):
        total = 0
        for p in children(pid):
            try:
                with open(f"/proc/{p}/status", encoding="ascii") as f:
                    total += next((int(l.split()[1]) for l in f if l.startswith("VmHWM")), 0)
            except (FileNotFoundError, ProcessLookupError):
                pass
        peak[0] = max(peak[0], total)


def drop_caches(folder):
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
            f.write("3\n")
    except OSError:
        for path in pathlib.Path(folder).rglob("*"):
            if path.is_file():
                fd = os.open(path, os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)


def files_of(folder, pattern):
    return sorted(pathlib.Path(folder).glob(pattern))


def size_of(files):
    return sum(f.stat().st_size for f in files)


def copy_limit(files, folder):
    """(seconds, cpu) of dd writing the files' bytes again in the folder."""
    seconds = cpu = 0.0
    for i, f in enumerate(files):
        r = Run(["dd", f"if={f}", f"of={folder}/limit-{i}", "bs=8M", "iflag=direct", "oflag=direct",
                 "conv=fsync"])
        seconds += r.seconds
        cpu += r.cpu
    for i in range(len(files)):
        (pathlib.Path(folder) / f"limit-{i}").unlink()
    return seconds, cpu


def read_limit(files):
    seconds = cpu = 0.0
    for f in files:
        r = Run(["dd", f"if={f}", "of=/dev/null", "bs=8M", "iflag=direct"])
        seconds += r.seconds
        cpu += r.cpu
    return seconds, cpu


def openssl_cpu_per_gb(file):
    """CPU seconds per GB of one SHA-256 pass (over a file in the page cache)."""
    size = pathlib.Path(file).stat().st_size
    Run(["cat", file])
    return min(Run(["openssl", "dgst", "-sha256", file]).cpu for _ in range(3)) / size * 1e9


def sha256_rate():
    """Bytes per second of openssl's SHA-256 on one core."""
    r = Run(["openssl", "speed", "-elapsed", "-seconds", "1", "-bytes", "1048576", "-evp", "sha256"])
    return float(r.out.split()[-1].rstrip("k")) * 1000


def toy(config, folder, *options):
    Run([TOOLS / "toy", "--config", CONFIGS / f"{config}.json", "--out", folder, "--files", "4",
         *options])
    return files_of(folder, "*.safetensors")


def scratch(need_gb):
    """A folder for big files: $BENCH_DIR, or build/bench in the tree. None if there is no room."""
    base = pathlib.Path(os.environ.get("BENCH_DIR", ROOT / "build/bench"))
    base.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(base).free < need_gb * 1e9:
        return None
    return tempfile.TemporaryDirectory(dir=base, prefix="bench-")


def speed_figure(name, size, ours, limit, ratio, note=None):
    """ours, limit: seconds of each pair. GB/s, and whether the line holds."""
    rate = [size / s / 1e9 for s in ours]
    best = [size / s / 1e9 for s in limit]
    best_ratio = max(rate) / max(best)
    median_ratio = statistics.median(rate) / statistics.median(best)
    void = max(best) > 3 * min(best)
    holds = not void and best_ratio >= ratio and median_ratio >= ratio - 0.1
    said = (f"best {best_ratio:.2f}, median {median_ratio:.2f} of the limit, promised {ratio:g} and "
            f"{ratio - 0.1:g}: {'void' if void else 'holds' if holds else 'missed'}")
    f = results.figure(name, "GB/s", "higher", rate, limit=round(statistics.median(best), 4),
                       note=f"{said}; {note}" if note else said)
    f["samples"]["limit"] = [round(x, 4) for x in best]
    f.update(bytes=size, best_ratio=round(best_ratio, 4), median_ratio=round(median_ratio, 4),
             void=void, holds=holds)
    return f


def cpu_figure(name, size, ours, dd, sha_per_gb):
    """CPU seconds per GB against dd plus one SHA-256 pass; the promise is 1.25 times that."""
    per_gb = [c / size * 1e9 for c in ours]
    limit = statistics.median(dd) / size * 1e9 + sha_per_gb
    f = results.figure(name, "CPU s/GB", "lower", per_gb, limit=round(limit, 4),
                       target=round(1.25 * limit, 4), note="limit: dd and one openssl SHA-256 pass")
    f["holds"] = f["ours"] <= f["target"]
    return f


def at_most(name, unit, value, target, note=None):
    f = results.figure(name, unit, "lower", [value] if not isinstance(value, list) else value,
                       target=target, note=note)
    f["holds"] = f["ours"] <= target
    return f
