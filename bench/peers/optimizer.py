"""The peer of optimizer_bench: clip, torch.optim.AdamW(fused=True) on fp32 parameters, cast to bf16.

  optimizer.py LAYERS HIDDEN WIDTH

One command a line on stdin:

  check  -> {"checksum"}: the sum of |p| of the bf16 parameters after one step
  time N -> {"ms": [N numbers]}
"""
import json
import os
import sys
import time

import torch

torch.set_num_threads(int(os.environ.get("BENCH_THREADS", "2")))
layers, h, f = map(int, sys.argv[1:4])
shapes = [(h,), (3 * h, h), (h, h), (h,), (2 * f, h), (h, f)] * layers


def values(shape, frequency):
    n = torch.Size(shape).numel()
    return (torch.arange(n, dtype=torch.float64) * frequency).sin().mul(0.1).float().view(shape)


low = [values(s, 0.37).bfloat16() for s in shapes]
main = [p.float().requires_grad_() for p in low]
grads = [values(s, 0.11) for s in shapes]
decay = [p for p in main if p.dim() > 1]
plain = [p for p in main if p.dim() == 1]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=1e-3, fused=True)


def step():
    torch.nn.utils.clip_grad_norm_(main, 1.0, foreach=True)
    optimizer.step()
    with torch.no_grad():
        torch._foreach_copy_(low, main)


def fresh_gradients():
    for p, g in zip(main, grads):
        if p.grad is None:
            p.grad = g.clone()
        else:
            p.grad.copy_(g)


for line in sys.stdin:
    words = line.split()
    if words[0] == "check":
        fresh_gradients()
        step()
        answer = {"checksum": sum(p.double().abs().sum().item() for p in low)}
    else:
        fresh_gradients()
        step()
        ms = []
        for _ in range(int(words[1])):
            fresh_gradients()  # clipping has changed them
            start = time.perf_counter()
            step()
            ms.append((time.perf_counter() - start) * 1e3)
        answer = {"ms": ms}
    print(json.dumps(answer), flush=True)
