#!/usr/bin/env python3
"""TensorBoard event files read by others: a parser written here from the format (TFRecord framing,
CRC-32C, protobuf wire types), and TensorBoard's own reader where that package is installed.

Each event file is compared with metrics.jsonl, value for value as a 32-bit float."""
import glob
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = pathlib.Path(os.environ.get("TOOLS", ROOT / "build/release/tools"))

TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def masked_crc(data):
    crc = 0xFFFFFFFF
    for b in data:
        crc = crc >> 8 ^ TABLE[(crc ^ b) & 255]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        assert crc == masked_crc(data[at:at + 8]), f"byte {at}: CRC of a length"
        body = data[at + 12:at + 12 + length]
        assert len(body) == length, f"byte {at}: cut"
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked_crc(body), \
            f"byte {at}: CRC of data"
        yield body
        at += 16 + length


def varint(data, at):
    x = shift = 0
    while True:
        b = data[at]
        x |= (b & 127) << shift
        at, shift = at + 1, shift + 7
        if b < 128:
            return x, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        elif key & 7 == 1:
            value, at = data[at:at + 8], at + 8
        elif key & 7 == 2:
            n, at = varint(data, at)
            value, at = data[at:at + n], at + n
            assert len(value) == n
        else:
            assert key & 7 == 5, f"wire type {key & 7}"
            value, at = data[at:at + 4], at + 4
        yield key >> 3, value


def scalars(path):
    """(restart step, {(step, tag): value}) of one file."""
    out, restart = {}, None
    for number, body in enumerate(records(pathlib.Path(path).read_bytes())):
        event = list(fields(body))
        one = dict(event)
        assert 1e9 < struct.unpack("<d", one[1])[0] < 2e9, "wall time"
        if number == 0:
            assert one[3] == b"brain.Event:2", "version"
        elif 7 in one:
            assert dict(fields(one[7])) == {1: 1}, "session log: START"
            restart = one[2]
        else:
            for number_, value in fields(one[5]):
                assert number_ == 1
                v = dict(fields(value))
                out[one[2], v[1].decode()] = struct.unpack("<f", v[2])[0]
    return restart, out


NAMES = {"loss": "loss/total", "lm_loss": "loss/lm", "mtp_loss": "loss/mtp",
         "indexer_loss": "loss/indexer", "grad_norm": "optimizer/grad_norm", "lr": "optimizer/lr",
         "eval_loss": "eval/loss"}


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def expected(run):
    out = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        for name, tag in NAMES.items():
            if row[name] is not None:
                out[row["step"], tag] = f32(row[name])
    return out


def main():
    with tempfile.TemporaryDirectory() as tmp:
        run = pathlib.Path(tmp) / "run"
        run.mkdir()
        tool = str(TOOLS / "metrics")
        subprocess.run([tool, str(run), "1", "40"], check=True)
        restart, first = scalars(glob.glob(str(run / "events.*"))[0])
        assert restart == 1 and first == expected(run), "the first file"
        assert len({s for s, _ in first}) == 40 and (20, "eval/loss") in first
        print("ok tfevents: what an independent parser reads is metrics.jsonl")

        subprocess.run([tool, str(run), "31", "50", "30"], check=True)
        files = sorted(glob.glob(str(run / "events.*")))
        assert len(files) == 2
        restart, second = scalars(files[1])
        joined = {k: v for k, v in first.items() if k[0] < restart} | second
        assert restart == 31 and joined == expected(run)
        print("ok tfevents: a resumed run is one history")

        damaged = pathlib.Path(files[0]).read_bytes()
        try:
            list(records(damaged[:200] + bytes([damaged[200] ^ 1]) + damaged[201:]))
        except AssertionError:
            print("ok tfevents: the parser sees a flipped bit")
        else:
            raise AssertionError("a flipped bit passed")

        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError:
            print("SKIP tfevents with TensorBoard: its package is not installed")
            return
        reader = EventAccumulator(str(run), size_guidance={"scalars": 0}, purge_orphaned_data=True)
        reader.Reload()
        seen = {(e.step, tag): e.value for tag in reader.Tags()["scalars"]
                for e in reader.Scalars(tag)}
        assert seen == expected(run), "TensorBoard reads something else"
        assert reader.Scalars("loss/lm")[0].wall_time == 1764000001.125
        print("ok tfevents with TensorBoard: reads the same")


if __name__ == "__main__":
    sys.exit(main())
