#!/usr/bin/env python3
"""One training step of tiny-a on the CPU beside transformers' on the same machine.

    make build/release/tools/trainstep
    python tests/bench/bench_train_cpu.py [--rounds 15]

Forward, mean cross-entropy, backward; float32; 2 threads on both sides; gradients set to zero in the
step; no optimizer, no MTP. The same weights (fixtures/make_tiny.py) and, token for token, the same
batch, packed for us and as rows of equal length for transformers, so the losses must agree: the
run fails if they do not within 1e-5. Ours and theirs alternate in one process each; the first two
rounds are dropped. transformers runs eager attention and its default way of running experts, and
eager experts; the faster of the two is the peer. Needs torch and transformers
(fixtures/requirements-parity.txt)."""
import argparse
import os
import pathlib
import subprocess
import sys
import time

import results

ROOT = pathlib.Path(results.HERE).parents[1]
TOOLS = pathlib.Path(os.environ.get("TOOLS", ROOT / "build/release/tools")).resolve()
SHAPES = ((4, 64), (4, 256))
THREADS = 2


def philox(c0, key0):
    """First two words of philox4x32_10 at counter (c0[0], c0[1], 0, 0)."""
    sys.path.insert(0, str(ROOT / "fixtures"))
    import numpy as np
    from philox import philox4x32_10
    c = [np.array([v], np.uint64) for v in (*c0, 0, 0)]
    x = philox4x32_10(*c, key0, 7)
    return int(x[0][0]), int(x[1][0])


def batch(sequences, length, vocab):
    """tests/support/tinymodel.c, tinybatch_new."""
    ids, targets = [], []
    for k in range(length):
        a, b = philox((k, length), 1)
        ids.append(0 if k == 2 else a % vocab)
        targets.append(-100)
        if k > 0 and b % 8 != 0:
            targets[k - 1] = ids[k]
    return [ids] * sequences, [targets] * sequences


class Peer:
    def __init__(self, experts):
        import torch
        import make_tiny
        from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM
        torch.set_num_threads(THREADS)
        self.torch = torch
        config = GlmMoeDsaConfig(**make_tiny.BASE, dtype="float32")
        config._attn_implementation = "eager"
        if experts:
            config._experts_implementation = experts
        self.model = GlmMoeDsaForCausalLM(config).eval()
        make_tiny.fill(self.model, 1, False, torch.float32)

    def step(self, ids, targets):
        torch = self.torch
        began = time.monotonic()
        self.model.zero_grad(set_to_none=False)
        logits = self.model(input_ids=ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
        loss.backward()
        return time.monotonic() - began, loss.item()


def measure(peers, sequences, length, rounds):
    import torch
    ids, targets = (torch.tensor(x) for x in batch(sequences, length, 320))
    ours = subprocess.Popen(
        [TOOLS / "trainstep", ROOT / "fixtures/tiny-a-f32", "f32", str(sequences), str(length),
         str(THREADS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    mine, theirs = [], {name: [] for name in peers}
    for i in range(rounds + 2):
        ours.stdin.write("\n")
        ours.stdin.flush()
        seconds, loss = map(float, ours.stdout.readline().split())
        mine.append(seconds)
        for name, peer in peers.items():
            seconds, other = peer.step(ids, targets)
            theirs[name].append(seconds)
            if abs(loss - other) > 1e-5 * other:
                sys.exit(f"loss {loss}, transformers {other}")
    ours.stdin.close()
    ours.wait()
    best = min(theirs, key=lambda n: sorted(theirs[n][2:])[rounds // 2])
    return mine[2:], theirs[best][2:], best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    sys.path.insert(0, str(ROOT / "fixtures"))
    peers = {"default experts": Peer(None), "eager experts": Peer("eager")}
    figures = []
    for sequences, length in SHAPES:
        tokens = sequences * length
        mine, theirs, which = measure(peers, sequences, length, rounds)
        where = f"tiny-a, {sequences} x {length} tokens"
        note = f"transformers 5.17.0 with {which}; forward and backward, float32, {THREADS} threads"
        figures.append(results.figure(f"train step, {where}", "ms", "lower",
                                      [1e3 * s for s in mine], [1e3 * s for s in theirs],
                                      note=note))
        figures.append(results.figure(f"train tokens, {where}", "tok/s", "higher",
                                      [tokens / s for s in mine], [tokens / s for s in theirs],
                                      note=note))
    results.write("train_cpu", "python tests/bench/bench_train_cpu.py", figures)
    results.show(figures)


if __name__ == "__main__":
    main()
