#!/usr/bin/env python3
"""transformers on the same card: the same weights, tokens and loss as gpu_slice, timed, compared.

    peer_slice.py CONFIG TOKENS [--rounds N] [--dump FILE]

Weights come from the formula of tests/gpu/support.h. sdpa attention, grouped_mm experts, bf16.
With --dump, the file that gpu_slice wrote is compared: loss, and per parameter the cosine of
sampled gradient elements, once as both chose keys and experts, and once more with our choices given
to transformers (near ties fall either way in BF16). Prints one JSON line."""
import argparse
import json
import math
import time

import numpy as np
import torch
from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM

M64 = (1 << 64) - 1


def seed_of(name):
    h = 1469598103934665603
    for c in name.encode():
        h = ((h ^ c) * 1099511628211) & M64
    return h


def signed(x):
    return x - (1 << 64) if x >= 1 << 63 else x


def shr(x, k):
    return (x >> k) & ((1 << (64 - k)) - 1)


def fill(n, name, scale, mean, dtype):
    out = torch.empty(n, dtype=dtype, device="cuda")
    step = 1 << 26
    for at in range(0, n, step):
        i = torch.arange(at, min(n, at + step), device="cuda", dtype=torch.int64)
        x = i + signed((seed_of(name) + 0x9E3779B97F4A7C15) & M64)
        x = (x ^ shr(x, 30)) * signed(0xBF58476D1CE4E5B9)
        x = (x ^ shr(x, 27)) * signed(0x94D049BB133111EB)
        x = x ^ shr(x, 31)
        s = (x & 0xFFFF) + (shr(x, 16) & 0xFFFF) + (shr(x, 32) & 0xFFFF) + shr(x, 48)
        v = (s - 131070).to(torch.float32) * np.float32(scale).item() + mean
        out[at:at + step] = v.to(dtype)
    return out


def logical(name, shape):
    """Our tensors in one of transformers': (name, shape, place)."""
    if name.endswith("experts.gate_up_proj"):
        half = shape[1] // 2
        base = name[:-len("gate_up_proj")]
        return [(base + "gate_proj.weight", (shape[0], half, shape[2]), (slice(None), slice(0, half))),
                (base + "up_proj.weight", (shape[0], half, shape[2]), (slice(None), slice(half, None)))]
    if name.endswith("experts.down_proj"):
        return [(name + ".weight", tuple(shape), (slice(None),))]
    return [(name, tuple(shape), ())]


def make(config):
    with torch.device("meta"):
        model = GlmMoeDsaForCausalLM(config)
    model = model.to(torch.bfloat16).to_empty(device="cuda")
    with torch.no_grad():
        for name, p in list(model.named_parameters()):
            for ours, shape, place in logical(name, p.shape):
                n = math.prod(shape)
                rank2 = len(shape) > 1
                scale = np.float32(1 / (37837.2 * math.sqrt(shape[-1]))) if rank2 else 0
                mean = 0.0 if rank2 or ".bias" in ours else 1.0
                w = fill(n, ours, scale, mean, torch.bfloat16).view(shape)
                (p.data if place == () else p.data[place]).copy_(w)
                del w
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                b.zero_()
        rotary = model.model.rotary_emb
        fresh = type(rotary)(config=config, device="cuda")
        model.model.rotary_emb = fresh
    return model.eval()


def batch(T, vocab):
    x, ids = 12345, []
    for _ in range(T):
        x = (x * 6364136223846793005 + 1442695040888963407) & M64
        ids.append((x >> 33) % vocab)
    return torch.tensor([ids], device="cuda")


def read_sets(path):
    sets = {}
    with open(path + ".sets", "rb") as f:
        while line := f.readline():
            layer, kind, rows, columns = line.decode().split()
            n = int(rows) * int(columns)
            a = np.frombuffer(f.read(4 * n), np.int32).reshape(int(rows), int(columns))
            sets[int(layer), kind] = torch.from_numpy(a.copy()).cuda()
    return sets


def replay(model, sets):
    """From now on the model uses our keys and experts, with its own scores and weights."""
    import types
    for i, layer in enumerate(model.model.layers):
        index = sets[i, "index"]
        own = torch.arange(index.shape[0], device="cuda", dtype=torch.int32)[:, None]
        index = torch.where(index < 0, own, index)[None]  # a row always sees itself
        layer.self_attn.indexer.forward = lambda *a, _index=index, **k: _index
        if (i, "expert") not in sets:
            continue

        def route(self, hidden, _expert=sets[i, "expert"].long()):
            hidden = hidden.view(-1, self.hidden_dim)
            logits = torch.nn.functional.linear(hidden.float(), self.weight.float())
            w = logits.sigmoid().gather(1, _expert)
            if self.norm_topk_prob:
                w = w / (w.sum(dim=-1, keepdim=True) + 1e-20)
            return logits, w * self.routed_scaling_factor, _expert
        layer.mlp.gate.forward = types.MethodType(route, layer.mlp.gate)


def step(model, ids):
    model.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    began = time.monotonic()
    logits = model(input_ids=ids, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits[0, :-1].float(), ids[0, 1:])
    loss.backward()
    torch.cuda.synchronize()
    return time.monotonic() - began, loss.item()


def compare(model, path, loss):
    out = {"worst": 1.0, "worst_name": "", "below": []}
    cosines = []
    params = dict(model.named_parameters())
    where = {}
    for name, p in params.items():
        for ours, shape, place in logical(name, p.shape):
            where[ours] = (p, place)
    with open(path, "rb") as f:
        out["loss_ours"] = float(f.readline().split()[1])
        out["loss_theirs"] = loss
        while True:
            line = f.readline()
            if not line:
                break
            name, n, count, norm = line.decode().split()
            n, count, norm = int(n), int(count), float(norm)
            mine = np.frombuffer(f.read(4 * count), np.float32).astype(np.float64)
            f.readline()
            if name not in where or where[name][0].grad is None:
                continue
            p, place = where[name]
            g = p.grad if place == () else p.grad[place]
            g = g.reshape(-1)
            at = torch.arange(count, device="cuda", dtype=torch.int64) * n // count
            theirs = g[at].to(torch.float64).cpu().numpy()
            d = np.linalg.norm(mine) * np.linalg.norm(theirs)
            cos = float(mine @ theirs / d) if d > 0 else (1.0 if not mine.any() and not theirs.any() else 0.0)
            cosines.append((cos, name, norm, float(torch.linalg.vector_norm(g.float()))))
    cosines.sort()
    out["worst"], out["worst_name"] = cosines[0][0], cosines[0][1]
    out["below"] = cosines[:4]
    out["tensors"] = len(cosines)
    return out


def main():
    a = argparse.ArgumentParser()
    a.add_argument("config")
    a.add_argument("tokens", type=int)
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--dump")
    a = a.parse_args()
    config = GlmMoeDsaConfig(**json.load(open(a.config)))
    config._attn_implementation = "sdpa"
    config._experts_implementation = "grouped_mm"
    model = make(config)
    for p in model.parameters():
        p.requires_grad_(True)
    ids = batch(a.tokens, config.vocab_size)
    torch.cuda.synchronize()
    base = torch.cuda.memory_allocated()
    seconds, loss = [], 0
    for _ in range(a.rounds):
        took, loss = step(model, ids)
        seconds.append(took)
        peak = torch.cuda.max_memory_allocated()
    out = {"tokens": a.tokens, "loss": loss, "weights": base, "peak": peak, "seconds": seconds}
    if a.dump:
        out["free"] = compare(model, a.dump, loss)
        replay(model, read_sets(a.dump))
        out["replayed"] = compare(model, a.dump, step(model, ids)[1])
    print(json.dumps(out))


if __name__ == "__main__":
    main()
