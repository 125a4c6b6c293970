"""The peer of model_bench: the same model in PyTorch, as its experts write it (fused projections, SDPA, fused norms).

  model.py FOLDER BATCH TOKENS [--layer]

FOLDER is a Hugging Face folder (llama or gpt2). One command a line on stdin:

  check          -> {"loss", "grad_norm"} of the batch, fp32 eager
  time VARIANT N -> {"ms": [N numbers]} of forward and backward
  peak VARIANT   -> {"bytes"}: the most that tensors allocate in forward and backward, gradients included

Variants: eager, compile (each block); and in bf16 with attention in fp32: bf16 (bf16 weights), bf16-compile,
autocast (fp32 weights), autocast-compile; bf16-sdpa and bf16-sdpa-compile keep attention in bf16, too.
"""
import contextlib
import json
import os
import sys
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.fp32 = c, False
        self.qkv = nn.Linear(c["h"], (c["n"] + 2 * c["g"]) * c["d"], bias=c["gpt"])
        self.o = nn.Linear(c["n"] * c["d"], c["h"], bias=c["gpt"])

    def forward(self, x, cos, sin):
        c, (b, t, _) = self.c, x.shape
        n, g, d = c["n"], c["g"], c["d"]
        q, k, v = self.qkv(x).split([n * d, g * d, g * d], -1)
        q, k, v = q.view(b, t, n, d), k.view(b, t, g, d), v.view(b, t, g, d)
        if not c["gpt"]:
            q, k = rope(q, cos, sin), rope(k, cos, sin)
        gqa = dict(is_causal=True, enable_gqa=n != g)
        if self.fp32:
            with torch.autocast("cpu", enabled=False):
                q, k, w = (z.float().transpose(1, 2) for z in (q, k, v))
                out = F.scaled_dot_product_attention(q, k, w, **gqa).to(v.dtype)
        else:
            q, k, w = (z.to(v.dtype).transpose(1, 2) for z in (q, k, v))
            out = F.scaled_dot_product_attention(q, k, w, **gqa)
        return self.o(out.transpose(1, 2).reshape(b, t, n * d))


def rope(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gpt = c["gpt"]
        norm = (lambda: nn.LayerNorm(c["h"], eps=c["eps"])) if c["gpt"] else (lambda: nn.RMSNorm(c["h"], eps=c["eps"]))
        self.n1, self.n2, self.attn = norm(), norm(), Attention(c)
        self.up = nn.Linear(c["h"], c["f"] if c["gpt"] else 2 * c["f"], bias=c["gpt"])
        self.down = nn.Linear(c["f"], c["h"], bias=c["gpt"])

    def forward(self, x, cos, sin):
        x = x + self.attn(self.n1(x), cos, sin)
        y = self.up(self.n2(x))
        if self.gpt:
            y = F.gelu(y, approximate="tanh")
        else:
            gate, up = y.chunk(2, -1)
            y = F.silu(gate) * up
        return x + self.down(y)


class Model(nn.Module):
    def __init__(self, c, tokens):
        super().__init__()
        self.emb = nn.Embedding(c["v"], c["h"])
        self.pos = nn.Embedding(c["positions"], c["h"]) if c["gpt"] else None
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.norm = nn.LayerNorm(c["h"], eps=c["eps"]) if c["gpt"] else nn.RMSNorm(c["h"], eps=c["eps"])
        inverse = 1.0 / c["theta"] ** (torch.arange(0, c["d"], 2).float() / c["d"])
        angles = torch.outer(torch.arange(tokens).float(), inverse)
        self.cos, self.sin = angles.cos()[None, :, None, :], angles.sin()[None, :, None, :]

    def forward(self, ids, targets):
        x = self.emb(ids)
        if self.pos is not None:
            x = x + self.pos.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.norm(x).view(-1, x.shape[-1]) @ self.emb.weight.t()
        return F.cross_entropy(logits.float(), targets.reshape(-1))


def read(folder, tokens):
    config = json.load(open(os.path.join(folder, "config.json")))
    gpt = config["model_type"] == "gpt2"
    get = lambda a, b: config[a if gpt else b]
    heads = get("n_head", "num_attention_heads")
    c = dict(gpt=gpt, h=get("n_embd", "hidden_size"), layers=get("n_layer", "num_hidden_layers"), n=heads,
             g=heads if gpt else config["num_key_value_heads"], v=config["vocab_size"],
             f=get("n_inner", "intermediate_size"), eps=get("layer_norm_epsilon", "rms_norm_eps"),
             positions=get("n_positions", "max_position_embeddings"), theta=config.get("rope_theta", 1e4))
    c["d"] = c["h"] // c["n"]
    model, w = Model(c, tokens), load_file(os.path.join(folder, "model.safetensors"))
    with torch.no_grad():
        put = lambda module, name, t: getattr(module, name).copy_(t)
        if gpt:
            put(model.emb, "weight", w["transformer.wte.weight"])
            put(model.pos, "weight", w["transformer.wpe.weight"])
            for kind in ("weight", "bias"):
                put(model.norm, kind, w[f"transformer.ln_f.{kind}"])
        else:
            put(model.emb, "weight", w["model.embed_tokens.weight"])
            put(model.norm, "weight", w["model.norm.weight"])
        for i, block in enumerate(model.blocks):
            if gpt:
                p = f"transformer.h.{i}."
                for ours, theirs in (("n1", "ln_1"), ("n2", "ln_2")):
                    for kind in ("weight", "bias"):
                        put(getattr(block, ours), kind, w[f"{p}{theirs}.{kind}"])
                for ours, theirs in ((block.attn.qkv, "attn.c_attn"), (block.attn.o, "attn.c_proj"),
                                     (block.up, "mlp.c_fc"), (block.down, "mlp.c_proj")):
                    put(ours, "weight", w[f"{p}{theirs}.weight"].t())
                    put(ours, "bias", w[f"{p}{theirs}.bias"])
            else:
                p = f"model.layers.{i}."
                put(block.n1, "weight", w[p + "input_layernorm.weight"])
                put(block.n2, "weight", w[p + "post_attention_layernorm.weight"])
                put(block.attn.qkv, "weight", torch.cat([w[f"{p}self_attn.{x}_proj.weight"] for x in "qkv"]))
                put(block.attn.o, "weight", w[p + "self_attn.o_proj.weight"])
                put(block.up, "weight", torch.cat([w[p + "mlp.gate_proj.weight"], w[p + "mlp.up_proj.weight"]]))
                put(block.down, "weight", w[p + "mlp.down_proj.weight"])
    return model, c


class Variant:
    def __init__(self, name, folder, batch, tokens, layer):
        self.model, c = read(folder, tokens)
        bf16_weights = name.startswith("bf16")
        if bf16_weights:
            self.model.bfloat16()
        for block in self.model.blocks:
            block.attn.fp32 = name not in ("eager", "compile") and "sdpa" not in name
            if "compile" in name:
                block.compile(fullgraph=True)
        self.autocast = name.startswith("autocast")
        self.layer = layer
        # What model_bench computes, too: ids and inputs by formula.
        flat = torch.arange(batch * tokens)
        self.ids = ((flat * 7919 + 13) % c["v"]).view(batch, tokens)
        self.targets = torch.cat([self.ids[:, 1:], torch.full((batch, 1), -100)], 1)
        x = torch.sin(torch.arange(batch * tokens * c["h"], dtype=torch.float64) * 0.37).float()
        self.x = x.view(batch, tokens, c["h"]).to(torch.bfloat16 if bf16_weights else torch.float32)

    def step(self):
        m = self.model
        for p in m.parameters():
            p.grad = None
        with torch.autocast("cpu", dtype=torch.bfloat16) if self.autocast else contextlib.nullcontext():
            if self.layer:
                x = self.x.detach().requires_grad_()
                out = m.blocks[0](x, m.cos, m.sin)
                loss = None
            else:
                loss = m(self.ids, self.targets)
        if self.layer:
            out.backward(self.x)
        else:
            loss.backward()
        return loss

    def peak(self):
        from torch.profiler import ProfilerActivity, profile
        self.step()
        for p in self.model.parameters():
            p.grad = None
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p:
            self.step()
        with tempfile.NamedTemporaryFile(suffix=".json") as f:
            p.export_chrome_trace(f.name)
            trace = json.load(open(f.name))
        events = sorted((e for e in trace["traceEvents"] if e.get("name") == "[memory]"), key=lambda e: e["ts"])
        now = most = 0
        for e in events:
            now += e["args"]["Bytes"]
            most = max(most, now)
        return most


def main():
    folder, batch, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    layer = "--layer" in sys.argv
    torch.set_num_threads(int(os.environ.get("BENCH_THREADS", "2")))
    made = {}

    def get(name):
        if name not in made:
            made[name] = Variant(name, folder, batch, tokens, layer)
            made[name].step()
            made[name].step()
        return made[name]

    for line in sys.stdin:
        words = line.split()
        if words[0] == "check":
            v = get("eager")
            loss = v.step()
            norm = sum(p.grad.double().square().sum() for p in v.model.parameters() if p.grad is not None).sqrt()
            print(json.dumps(dict(loss=loss.item() if loss is not None else 0, grad_norm=norm.item())), flush=True)
        elif words[0] == "time":
            v, ms = get(words[1]), []
            v.step()
            for _ in range(int(words[2])):
                start = time.perf_counter()
                v.step()
                ms.append((time.perf_counter() - start) * 1e3)
            print(json.dumps(dict(ms=ms)), flush=True)
        else:
            print(json.dumps(dict(bytes=get(words[1]).peak())), flush=True)


main()
