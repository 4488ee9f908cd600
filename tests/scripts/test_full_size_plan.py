#!/usr/bin/env python3
"""The dry run of an import over a header-only GLM-5.2 (59,585 tensors, 282 sparse files): it counts
right, and it finds one wrong shape, one missing tensor, one overlap among them."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BIN", ROOT / "build/release/bin"))
TOOLS = pathlib.Path(os.environ.get("TOOLS", ROOT / "build/release/tools"))
VICTIM = "model.layers.40.mlp.experts.137.up_proj.weight"


def plan(src, *words):
    return subprocess.run([BIN / "glm-import", "--dry-run", "--json", src, src.parent / "out", *words],
                          capture_output=True, text=True, timeout=1800)


def file_of(src, tensor):
    return src / json.loads((src / "model.safetensors.index.json").read_text())["weight_map"][tensor]


def edit(path, change):
    """change(header dict) on a file's header; the file keeps its length in data."""
    with open(path, "r+b") as f:
        n = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(n))
        size = os.path.getsize(path) - 8 - n
        change(header)
        text = json.dumps(header, separators=(",", ":")).encode()
        assert len(text) <= n + 64
        text = text.ljust(n) if len(text) <= n else text + b" " * (-len(text) % 8)
        f.seek(0)
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + size)


def wrong_shape(header):
    rows, columns = header[VICTIM]["shape"]
    header[VICTIM]["shape"] = [rows // 2, columns * 2]


def overlap(header):
    begin, end = header[VICTIM]["data_offsets"]
    header[VICTIM]["data_offsets"] = [begin - 4096, end - 4096]


def missing(header):
    """Its bytes go to a name that no model has, so that only the name is missing."""
    header["model.layers.40.mlp.experts.137.xx_proj.weight"] = header.pop(VICTIM)


def main():
    if not (BIN / "glm-import").exists():
        print("SKIP full_size_plan: glm-import is not built")
        return 77
    failed = 0

    def check(name, good, said):
        nonlocal failed
        failed |= not good
        print(f"ok {name}" if good else f"FAIL {name}: {said[-400:]}")

    with tempfile.TemporaryDirectory(prefix="glm-plan-") as folder:
        src = pathlib.Path(folder) / "src"
        subprocess.run([TOOLS / "toy", "--config", ROOT / "fixtures/configs/glm-5.2.json", "--out", src,
                        "--files", "282", "--sparse"], check=True)
        r = plan(src)
        got = json.loads(r.stdout) if r.returncode == 0 else {}
        check("plans_the_full_model", got.get("hf_tensors") == 59585, r.stderr + r.stdout)
        check("writes_nothing", sorted(os.listdir(folder)) == ["src"], str(os.listdir(folder)))
        r = plan(src, "--tp", "8", "--pp", "13", "--ep", "32")
        check("plans_tp8_pp13_ep32", r.returncode == 0, r.stderr)
        path = file_of(src, VICTIM)
        with open(path, "rb") as f:
            n = int.from_bytes(f.read(8), "little")
            f.seek(0)
            keep = f.read(8 + n)
        for name, change in (("wrong_shape", wrong_shape), ("overlap", overlap),
                             ("missing_tensor", missing)):
            size = os.path.getsize(path) - len(keep)
            edit(path, change)
            r = plan(src)
            check(f"finds_one_{name}", r.returncode == 3 and VICTIM in r.stderr,
                  f"status {r.returncode}: {r.stderr}")
            with open(path, "r+b") as f:
                f.write(keep)
                f.truncate(len(keep) + size)
            if plan(src).returncode != 0:
                check(f"restored_after_{name}", False, "the restored model is refused")
    return failed


if __name__ == "__main__":
    sys.exit(main())
