#!/usr/bin/env python3
"""PyTorch on the same card: the operations of gpu_time that it has, at the same shapes, timed alike.

    peer_ops.py [--tokens N] [--rounds N] [--ours TIME.json] [--out FILE] [--only K2] [--device cuda]

Random data, several sets of inputs so that none is found in the cache, the median of times between
events. With --ours, what `gpu_time --json` wrote on this card: a table of ours, PyTorch's and their
ratio. Writes JSON: {"device", "lines": [{"op", "case", "median_ms", "ms", "ours_ms"}]}."""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

H, W, HEADS, DIM, VOCAB = 6144, 2048, 64, 256, 154880
LINEAR = [(2048, 6144), (16384, 2048), (576, 6144), (28672, 512), (6144, 16384), (12288, 6144),
          (6144, 12288), (2048, 2048), (6144, 2048), (256, 6144)]


class Bench:
    def __init__(self, args):
        self.device, self.rounds, self.only = args.device, args.rounds, args.only
        self.lines = []

    def normal(self, *shape, dtype=torch.bfloat16):
        return torch.randn(*shape, device=self.device, dtype=dtype)

    def once(self, run):
        if self.device == "cpu":
            begin = time.perf_counter()
            run()
            return (time.perf_counter() - begin) * 1e3
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        return begin, end

    def line(self, kernel, op, case, make, run):
        """run(*make()) on as many sets as leave the cache."""
        if self.only and kernel != self.only:
            return
        sets = [make()]
        size = sum(t.numel() * t.element_size() for t in sets[0] if torch.is_tensor(t))
        while size * len(sets) < 160e6 and len(sets) < 6:
            sets.append(make())
        for s in sets[:2]:
            run(*s)
        times = [self.once(lambda s=sets[i % len(sets)]: run(*s)) for i in range(self.rounds)]
        if self.device != "cpu":
            torch.cuda.synchronize()
            times = [a.elapsed_time(b) for a, b in times]
        self.lines.append({"kernel": kernel, "op": op, "case": case, "ms": times,
                           "median_ms": statistics.median(times)})
        del sets
        if self.device != "cpu":
            torch.cuda.empty_cache()


def products(b, T):
    for out, inn in LINEAR:
        b.line("K1", "gemm", f"forward {out} <- {inn}, T {T}",
               lambda: (b.normal(T, inn), b.normal(out, inn)), F.linear)
        b.line("K1", "gemm", f"dgrad {out} -> {inn}, T {T}",
               lambda: (b.normal(T, out), b.normal(out, inn)), torch.mm)
        b.line("K1", "gemm", f"wgrad {out} x {inn}, T {T}",
               lambda: (b.normal(T, out), b.normal(T, inn)), lambda dy, x: torch.mm(dy.t(), x))


def ends(b, rows, experts):
    """The same for each run: groups an eighth smaller or larger than their mean."""
    g = torch.Generator().manual_seed(3)
    each = rows // experts
    cut = [(i + 1) * each + int(torch.randint(each // 8 + 1, (1,), generator=g))
           for i in range(experts - 1)] + [rows]
    return torch.tensor(cut, dtype=torch.int32, device=b.device)


def grouped(b, T):
    rows = 8 * T

    def forward(x, w, offs):
        return F.grouped_mm(x, w.transpose(1, 2), offs=offs)

    def dgrad(dy, w, offs):
        return F.grouped_mm(dy, w, offs=offs)

    def wgrad(dy, x, offs):
        return F.grouped_mm(dy.t(), x, offs=offs)

    for experts in (16, 32):
        def case(what, n, k):
            return f"{what}, {experts} experts, N {n}, K {k}, T {T}"
        for what, n, k in (("gate", W, H), ("down", H, W)):
            b.line("K2", "grouped_gemm", case(what, n, k), lambda: (
                b.normal(rows, k), b.normal(experts, n, k), ends(b, rows, experts)), forward)
        for what, n, k in (("down dgrad", W, H), ("gate dgrad", H, W)):
            b.line("K2", "grouped_gemm", case(what, n, k), lambda: (
                b.normal(rows, k), b.normal(experts, k, n), ends(b, rows, experts)), dgrad)
        for what, n, k in (("gate wgrad", W, H), ("down wgrad", H, W)):
            b.line("K2", "grouped_gemm", case(what, n, k), lambda: (
                b.normal(rows, n), b.normal(rows, k), ends(b, rows, experts)), wgrad)


def movement(b, T):
    K, rows = 8, 8 * T

    def index():
        return torch.randperm(rows, device=b.device)

    def combine(f, w, shared, row):
        return (f[row].view(T, K, H) * w.unsqueeze(-1)).sum(1).to(f.dtype) + shared

    b.line("K3", "moe_gather", f"T {T}", lambda: (b.normal(T, H), index() // K),
           lambda x, token: x[token])
    b.line("K3", "moe_combine_fwd", f"T {T}",
           lambda: (b.normal(rows, H), b.normal(T, K), b.normal(T, H), index()), combine)
    b.line("K3", "router_fwd", f"E 256, T {T}",
           lambda: (b.normal(T, 256, dtype=torch.float32),),
           lambda x: torch.topk(torch.sigmoid(x), K, dim=-1))


def attention(b, T):
    def make():
        return tuple(b.normal(1, HEADS, T, DIM) for _ in range(3))

    def both():
        q, k, v = (x.requires_grad_() for x in make())
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return q, k, v, o, torch.randn_like(o)

    def backward(q, k, v, o, do):
        torch.autograd.grad(o, (q, k, v), do, retain_graph=True)

    b.line("K4", "attention_fwd", f"causal, T {T}", make,
           lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    b.line("K5", "attention_bwd", f"causal, T {T}", both, backward)


def elementwise(b, T):
    for d in (512, 2048, 6144):
        b.line("K13", "rmsnorm_fwd", f"D {d}, T {T}", lambda: (b.normal(T, d), b.normal(d)),
               lambda x, w: F.rms_norm(x, (x.shape[1],), w, 1e-5))
    b.line("K15", "swiglu_fwd", f"dense, T {T}",
           lambda: (b.normal(T * 12288), b.normal(T * 12288)), lambda a, c: F.silu(a) * c)
    b.line("-", "add", f"T {T}", lambda: (b.normal(T * H), b.normal(T * H)), torch.add)
    b.line("-", "embedding_fwd", f"T {T}", lambda: (
        torch.randint(VOCAB, (T,), device=b.device), b.normal(VOCAB, H)), F.embedding)


def head(b, T):
    def make():
        h, w = b.normal(T, H).requires_grad_(), b.normal(VOCAB, H).requires_grad_()
        return h, w, torch.randint(VOCAB, (T,), device=b.device)

    def forward(h, w, target):
        with torch.no_grad():
            F.cross_entropy(F.linear(h, w).float(), target)

    def backward(h, w, target):
        torch.autograd.grad(F.cross_entropy(F.linear(h, w).float(), target), (h, w))

    b.line("K16", "linear_ce_fwd", f"T {T}", make, forward)
    b.line("K16", "linear_ce_fwd and linear_ce_bwd", f"T {T}", make, backward)


def optimizer(b):
    def make():
        p = torch.nn.Parameter(b.normal(256 << 20, dtype=torch.float32))
        p.grad = torch.randn_like(p)
        return (torch.optim.AdamW([p], lr=1e-4, fused=True),)

    b.line("K19", "adamw", "256 Mi", make, lambda o: o.step())


def join(lines, path):
    with open(path) as f:
        ours = {(x["op"], x["case"]): x["median_ms"] for x in json.load(f)["lines"]}
    for x in lines:
        mine = [ours.get((op, x["case"])) for op in x["op"].split(" and ")]
        x["ours_ms"] = None if None in mine else sum(mine)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--ours")
    parser.add_argument("--out")
    parser.add_argument("--only")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    b = Bench(args)
    torch.manual_seed(1)
    for part in (products, grouped, movement, attention, elementwise, head):
        part(b, args.tokens)
    optimizer(b)
    if args.ours:
        join(b.lines, args.ours)
    for x in b.lines:
        mine = x.get("ours_ms")
        ratio = f"{mine:9.4f} ms  PyTorch / ours {x['median_ms'] / mine:5.2f}" if mine else ""
        print(f"{x['kernel']:4} {x['op']:16} {x['case']:44} {x['median_ms']:9.4f} ms  {ratio}")
    if args.out:
        name = torch.cuda.get_device_name() if args.device != "cpu" else "cpu"
        with open(args.out, "w") as f:
            json.dump({"device": name, "torch": torch.__version__, "lines": b.lines}, f, indent=1)


if __name__ == "__main__":
    main()
