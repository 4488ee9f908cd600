"""One import by the peers' means: peer_import.py dcp|h5py SRC OUT.

dcp:  safetensors into torch.distributed.checkpoint (one process, no process group)
h5py: safetensors into one HDF5 file, a dataset per tensor, BF16 as its 16-bit words
Both as their documentation shows, then fsynced, as ours is."""
import glob
import os
import pathlib
import sys

from safetensors import safe_open


def tensors(src, framework):
    for path in sorted(glob.glob(f"{src}/*.safetensors")):
        with safe_open(path, framework) as f:
            for name in f.keys():
                yield name, f.get_tensor(name)


def sync(folder):
    for path in [*pathlib.Path(folder).rglob("*"), pathlib.Path(folder)]:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def main(kind, src, out):
    os.makedirs(out)
    if kind == "dcp":
        import torch.distributed.checkpoint as dcp
        dcp.save(dict(tensors(src, "pt")), checkpoint_id=out, no_dist=True)
    else:
        import h5py
        import torch
        with h5py.File(f"{out}/model.h5", "w", libver="latest") as f:
            for name, t in tensors(src, "pt"):
                t = t.view(torch.int16) if t.dtype == torch.bfloat16 else t
                f.create_dataset(name.replace(".", "/"), data=t.numpy())
    sync(out)


main(*sys.argv[1:])
