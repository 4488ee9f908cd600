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

H, W, HEADS, DIM, VOCAB, TOPK = 6144, 2048, 64, 256, 154880, 2048
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

    def added(dy, w, offs, dx):
        return dx.add_(F.grouped_mm(dy, w, offs=offs))

    for experts in (16, 32, 256):
        def case(what, n, k):
            return f"{what}, {experts} experts, N {n}, K {k}, T {T}"
        for what, n, k in (("gate", W, H), ("down", H, W)):
            b.line("K2", "grouped_gemm", case(what, n, k), lambda: (
                b.normal(rows, k), b.normal(experts, n, k), ends(b, rows, experts)), forward)
        for what, n, k in (("down dgrad", W, H), ("gate dgrad", H, W)):
            b.line("K2", "grouped_gemm", case(what, n, k), lambda: (
                b.normal(rows, k), b.normal(experts, k, n), ends(b, rows, experts)), dgrad)
        b.line("K2", "grouped_gemm", case("up dgrad, added", H, W), lambda: (
            b.normal(rows, W), b.normal(experts, W, H), ends(b, rows, experts), b.normal(rows, H)),
            added)
        for what, n, k in (("gate wgrad", W, H), ("down wgrad", H, W)):
            b.line("K2", "grouped_gemm", case(what, n, k), lambda: (
                b.normal(rows, n), b.normal(rows, k), ends(b, rows, experts)), wgrad)


def movement(b, T):
    K, rows = 8, 8 * T

    def index():
        return torch.randperm(rows, device=b.device)

    def combine(f, w, shared, row):
        return (f[row].view(T, K, H) * w.unsqueeze(-1)).sum(1).to(f.dtype) + shared

    def combine_back(dy, f, w, row, token):
        d = dy[token]
        return torch.empty_like(f).index_copy_(0, row, d * w.view(-1, 1)), (f[row] * d).sum(1)

    def plan(expert):
        order = torch.sort(expert.view(-1), stable=True)
        return order, torch.cumsum(torch.bincount(order[0], minlength=16), 0)

    b.line("K3", "moe_plan", f"E 16, T {T}",
           lambda: (torch.rand(T, 16, device=b.device).topk(K)[1],), plan)
    b.line("K3", "moe_combine_bwd", f"T {T}",
           lambda: (b.normal(T, H), b.normal(rows, H), b.normal(T, K), index(),
                    torch.arange(rows, device=b.device) // K), combine_back)
    b.line("K3", "moe_gather_bwd", f"T {T}", lambda: (b.normal(rows, H), index()),
           lambda d, row: d[row].view(T, K, H).sum(1))
    b.line("K3", "moe_gather", f"T {T}", lambda: (b.normal(T, H), index() // K),
           lambda x, token: x[token])
    b.line("K3", "moe_combine_fwd", f"T {T}",
           lambda: (b.normal(rows, H), b.normal(T, K), b.normal(T, H), index()), combine)
    b.line("K3", "router_fwd", f"E 256, T {T}",
           lambda: (b.normal(T, 256, dtype=torch.float32),),
           lambda x: torch.topk(torch.sigmoid(x), K, dim=-1))


def chosen(b, T, k):
    """For each row k keys at random of those up to itself, -1 where there are fewer."""
    seen = torch.rand(T, T, device=b.device).tril_() - torch.ones(T, T, device=b.device).triu_(1)
    top = seen.topk(min(k, T))
    return torch.where(top[0] < 0, -1, top[1])


def attention(b, T):
    def make():
        return tuple(b.normal(1, HEADS, T, DIM) for _ in range(3))

    def masked():
        index = chosen(b, T, TOPK)
        mask = torch.zeros(T, T + 1, dtype=torch.bool, device=b.device)
        mask.scatter_(1, torch.where(index < 0, T, index), True)
        return make() + (mask[:, :T].contiguous(),)

    def dense(q, k, v, mask=None):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)

    def both(sets):
        q, k, v, *mask = masked() if sets else make()
        given = tuple(x.requires_grad_() for x in (q, k, v))
        o = dense(*given, *mask)
        return given, o, torch.randn_like(o)

    b.line("K4", "attention_fwd", f"causal, T {T}", make, dense)
    b.line("K5", "attention_bwd", f"causal, T {T}", lambda: both(False), again)
    if T > TOPK:
        b.line("K6", "attention_fwd", f"sets of 2048, T {T}", masked, dense)
        b.line("K6", "attention_bwd", f"sets of 2048, T {T}", lambda: both(True), again)


def again(given, o, do):
    """The backward pass alone, of a forward pass that was made before."""
    return torch.autograd.grad(o, given, do, retain_graph=True)


def latent(b, T):
    """Keys and values are gathered for some rows at a time, as they would not fit the card."""
    if T <= TOPK:
        return

    def forward(q, kv, index):
        parts = []
        for at in range(0, T, 512):
            i = index[at:at + 512]
            keys = kv[i.clamp(min=0)]
            s = (q[at:at + 512] @ keys.transpose(1, 2)).float() / 16
            s = s.masked_fill((i < 0).unsqueeze(1), float("-inf"))
            parts.append(torch.softmax(s, -1).to(q.dtype) @ keys[..., :512])
        return torch.cat(parts)

    def make():
        return b.normal(T, HEADS, 576), b.normal(T, 576), chosen(b, T, TOPK)

    def both():
        q, kv, index = make()
        given = q.requires_grad_(), kv.requires_grad_()
        o = forward(*given, index)
        return given, o, torch.randn_like(o)

    b.line("K7", "attention_fwd", f"latent sets of 2048, T {T}", make, forward)
    b.line("K8", "attention_bwd", f"latent sets of 2048, T {T}", both, again)


def indexer(b, T):
    def make():
        return b.normal(T, 32, 128), b.normal(T, 128), b.normal(T, 32, dtype=torch.float32)

    def score(q, k, w):
        out = torch.empty(T, T, device=b.device)
        for at in range(0, T, 1024):
            rows = slice(at, at + 1024)
            s = torch.einsum("thd,sd->ths", q[rows], k).float().relu_()
            out[rows] = torch.einsum("ths,th->ts", s, w[rows])
        return out.masked_fill_(torch.ones_like(out, dtype=torch.bool).triu_(1), float("-inf"))

    def top(s):
        return s.topk(min(TOPK, T), sorted=False)

    b.line("K9", "indexer_topk", f"T {T}", make, lambda *x: top(score(*x)))
    b.line("K9", "score", f"T {T}", make, score)
    b.line("K9", "topk", f"T {T}", lambda: (b.normal(T, T, dtype=torch.float32),), top)


def elementwise(b, T):
    def norm(x, w):
        return F.rms_norm(x, (x.shape[1],), w, 1e-5)

    def norm_both(d):
        given = b.normal(T, d).requires_grad_(), b.normal(d).requires_grad_()
        o = norm(*given)
        return given, o, torch.randn_like(o)

    def gated(a, c):
        return F.silu(a) * c

    def gated_both():
        given = b.normal(T * 12288).requires_grad_(), b.normal(T * 12288).requires_grad_()
        o = gated(*given)
        return given, o, torch.randn_like(o)

    def rope(q, cos, sin):
        x = q[..., 192:].unflatten(-1, (32, 2))
        even, odd = x[..., 0], x[..., 1]
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
        return torch.cat((q[..., :192], turned), -1)

    for d in (512, 2048, 6144):
        b.line("K13", "rmsnorm_fwd", f"D {d}, T {T}", lambda: (b.normal(T, d), b.normal(d)), norm)
        b.line("K13", "rmsnorm_bwd", f"D {d}, T {T}" + (", added" if d == 6144 else ""),
               lambda: norm_both(d), again if d < 6144 else
               lambda given, o, do: again(given, o, do)[0].add_(do))
    b.line("K14", "rope", f"queries, T {T}", lambda: (
        b.normal(T, HEADS, DIM), b.normal(T, 1, 32), b.normal(T, 1, 32)), rope)
    b.line("K14", "blocks", f"keys, T {T}", lambda: (
        b.normal(T, HEADS, DIM), b.normal(T, HEADS, 448)),
        lambda y, x: y[..., :192].copy_(x[..., :192]))
    b.line("K15", "swiglu_fwd", f"dense, T {T}",
           lambda: (b.normal(T * 12288), b.normal(T * 12288)), gated)
    b.line("K15", "swiglu_bwd", f"dense, T {T}", gated_both, again)
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
    b.line("K16", "linear_ce_bwd", f"T {T}, loss too", make, backward)


def optimizer(b):
    def make():
        p = torch.nn.Parameter(b.normal(256 << 20, dtype=torch.float32))
        p.grad = torch.randn_like(p)
        return (torch.optim.AdamW([p], lr=1e-4, fused=True),)

    def muon(w, m, g):
        """Nesterov's momentum, five Newton-Schulz steps in BF16, decay and update."""
        m.lerp_(g, 0.05)
        x = g.lerp(m, 0.95).bfloat16()
        x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
        for _ in range(5):
            a = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(a, a, a, beta=-4.775, alpha=2.0315), x, beta=3.4445)
        w.mul_(1 - 1e-4).add_(x, alpha=-1e-3)

    def matrices(*shape):
        return lambda: tuple(b.normal(*shape, dtype=torch.float32) for _ in range(3))

    b.line("K19", "adamw", "256 Mi", make, lambda o: o.step())
    b.line("K19", "sum_squares", "16 x 2048 x 6144", matrices(16, 2048, 6144),
           lambda x, *_: torch.linalg.vector_norm(x, dim=(1, 2)))
    b.line("K20", "muon", "16 x 2048 x 6144", matrices(16, 2048, 6144), muon)
    b.line("K21", "muon", "64 x 256 x 2048", matrices(64, 256, 2048), muon)


def join(lines, path):
    with open(path) as f:
        ours = {(x["op"], x["case"]): x["median_ms"] for x in json.load(f)["lines"]}
    for x in lines:
        x["ours_ms"] = ours.get((x["op"], x["case"]))


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
    for part in (products, grouped, movement, attention, latent, indexer, elementwise, head):
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
