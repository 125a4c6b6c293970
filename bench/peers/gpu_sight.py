"""The peer of sight_bench: steps of AdamW on a Hugging Face model that sees, from pixels and positions that are ready.

  gpu_sight.py config.json ROWS LENGTH IMAGES HEIGHT WIDTH frozen|trained [--device cpu]

Each row has IMAGES images of HEIGHT x WIDTH patches and text up to LENGTH tokens, of which the last ones have labels. With `frozen`
the vision tower and its merger are not trained. Weights are random, in bf16 (on the CPU fp32) with fp32 main parameters.

Attention of the tower is tried in two forms: "sdpa" as transformers has it without flash-attn (one call per image or window), and
"varlen", torch's own flash kernel for packed sequences, handed to transformers as its flash attention; that of the language model is
PyTorch's, by its cuDNN or flash kernel. One JSON line: tokens per second and GiB of the fastest form, and of each.
"""
import argparse
import json
import os
import statistics
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

transformers.logging.set_verbosity_error()
WARM_UP, STEPS = 3, 8

parser = argparse.ArgumentParser()
parser.add_argument("config")
for name in ("rows", "length", "images", "height", "width"):
    parser.add_argument(name, type=int)
parser.add_argument("parts", choices=["frozen", "trained"])
parser.add_argument("--device", default="cuda")
args = parser.parse_args()
cuda = args.device == "cuda"
dtype = torch.bfloat16 if cuda else torch.float32


def flash_varlen(module, query, key, value, attention_mask=None, scaling=None, cu_seq_lens_q=None, max_length_q=None, **_):
    from torch.nn.attention.varlen import varlen_attn
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    if max_length_q is None:
        max_length_q = int((cu_seq_lens_q[1:] - cu_seq_lens_q[:-1]).max())
    out = varlen_attn(q, k, v, cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q, scale=scaling)
    return out.unsqueeze(0), None


ALL_ATTENTION_FUNCTIONS.register("flash_varlen", flash_varlen)


class MainWeights:
    """fp32 main parameters beside trained bf16 ones, updated in groups so that fp32 copies of gradients stay small."""

    def __init__(self, trained):
        self.groups, size = [[]], 0
        for p in trained:
            self.groups[-1].append(p)
            size += p.numel()
            if size >= 1 << 28:
                self.groups.append([])
                size = 0
        self.groups = [g for g in self.groups if g]
        self.main = [[p.detach().float().clone() for p in g] for g in self.groups]
        self.optimizers = [torch.optim.AdamW(m, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True) for m in self.main]

    @torch.no_grad()
    def step(self):
        for group, main, optimizer in zip(self.groups, self.main, self.optimizers):
            for p, m in zip(group, main):
                m.grad, p.grad = p.grad.float(), None
            optimizer.step()
            torch._foreach_copy_(group, main)
            for m in main:
                m.grad = None


def inputs(config):
    merge = config.vision_config.spatial_merge_size
    tokens = args.height * args.width // merge**2
    image = [config.vision_start_token_id] + tokens * [config.image_token_id] + [config.vision_end_token_id]
    text = args.length - args.images * len(image)
    assert text > 1, f"{args.images} images of {tokens} tokens leave no room for text in {args.length}"
    ids = torch.randint(7, 500, (args.rows, args.length))
    ids[:, : args.images * len(image)] = torch.tensor(args.images * image)
    labels = ids.clone()
    labels[:, : args.images * len(image)] = -100
    vision = config.vision_config
    row = 3 * vision.temporal_patch_size * vision.patch_size**2
    grids = torch.tensor([[1, args.height, args.width]] * (args.rows * args.images))
    pixels = torch.randn(args.rows * args.images * args.height * args.width, row)
    return {"input_ids": ids, "labels": labels, "pixel_values": pixels, "image_grid_thw": grids,
            "mm_token_type_ids": (ids == config.image_token_id).int()}


def milliseconds(form, backend):
    config = AutoConfig.from_pretrained(os.path.dirname(os.path.abspath(args.config)))
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    with torch.device(args.device):
        model = AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa")
    torch.set_default_dtype(default)
    model = model.to(dtype).train()
    if form == "varlen":
        model.config.vision_config._attn_implementation = "flash_varlen"
    visual = model.model.visual
    visual.requires_grad_(args.parts == "trained")
    batch = {name: values.to(args.device) for name, values in inputs(config).items()}
    batch["pixel_values"] = batch["pixel_values"].to(dtype)
    with torch.no_grad():
        batch["position_ids"] = model.model.get_rope_index(
            batch["input_ids"], image_grid_thw=batch["image_grid_thw"], mm_token_type_ids=batch.pop("mm_token_type_ids"))[0]
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = MainWeights(trained)
    times = []
    for _ in range(WARM_UP + STEPS):
        wait()
        start = time.perf_counter()
        with sdpa_kernel(backend, set_priority=True):
            model(**batch, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
        optimizer.step()
        wait()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[WARM_UP:])


def wait():
    if cuda:
        torch.cuda.synchronize()


def measured(form, backend):
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    found = {"form": f"{form}, {'+'.join(b.name.lower() for b in backend)}"}
    try:
        found["tok_s"] = 1000 * args.rows * args.length / milliseconds(form, backend)
        found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0
    except Exception as error:  # a form that this version does not have is no result
        found["error"] = f"{type(error).__name__}: {error}"[:300]
    return found


flash = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
cudnn = [SDPBackend.CUDNN_ATTENTION, *flash]
forms = [measured("sdpa", flash)]
if cuda:
    forms += [measured("varlen", flash), measured("varlen", cudnn)]
best = max(forms, key=lambda each: each.get("tok_s", 0))
print(json.dumps({"transformers": transformers.__version__, "tok_s": best.get("tok_s"), "peak_gib": best.get("peak_gib"), "forms": forms}))
