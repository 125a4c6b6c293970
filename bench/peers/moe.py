"""The peer of moe_bench: the block of experts of Hugging Face's qwen3_moe, with each of its implementations.

  moe.py HIDDEN WIDTH EXPERTS TOPK TOKENS DTYPE

One command a line on stdin:

  check          -> {"output", "gradients"}: L2 norms, eager, fp32
  time NAME N    -> {"ms": [N numbers]} of forward and backward; NAME: eager, batched_mm, grouped_mm
"""
import json
import sys
import time

import torch
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

hidden, width, experts, topk, tokens = map(int, sys.argv[1:6])
dtype = getattr(torch, sys.argv[6])


def numbers(shape, factor, scale):
    n = 1
    for s in shape:
        n *= s
    spread = torch.frac(torch.sin(torch.arange(n, dtype=torch.float64) * factor) * 43758.5453)
    return (spread * scale).view(shape).float()


def block(implementation, dtype):
    config = Qwen3MoeConfig(hidden_size=hidden, moe_intermediate_size=width, num_experts=experts,
                            num_experts_per_tok=topk, norm_topk_prob=True, hidden_act="silu")
    config._experts_implementation = implementation
    made = Qwen3MoeSparseMoeBlock(config)
    with torch.no_grad():
        made.gate.weight.copy_(numbers((experts, hidden), 1.7, 0.1))
        made.experts.gate_up_proj.copy_(numbers((experts, 2 * width, hidden), 0.7, 0.05))
        made.experts.down_proj.copy_(numbers((experts, hidden, width), 1.3, 0.05))
    return made.to(dtype)


x = numbers((1, tokens, hidden), 0.37, 1.0)
blocks = {}


def step(made, dtype):
    made.zero_grad(set_to_none=True)
    inputs = x.to(dtype).requires_grad_()
    out = made(inputs)
    out.backward(x.to(dtype))
    return out, inputs


for line in sys.stdin:
    words = line.split()
    if words[0] == "check":
        made = block("eager", torch.float32)
        out, inputs = step(made, torch.float32)
        square = sum(p.grad.double().square().sum() for p in made.parameters()) + inputs.grad.double().square().sum()
        answer = {"output": out.double().norm().item(), "gradients": square.sqrt().item()}
    else:
        if words[1] not in blocks:
            blocks[words[1]] = block(words[1], dtype)
        made = blocks[words[1]]
        step(made, dtype)
        ms = []
        for _ in range(int(words[2])):
            start = time.perf_counter()
            step(made, dtype)
            ms.append((time.perf_counter() - start) * 1e3)
        answer = {"ms": ms}
    print(json.dumps(answer), flush=True)
