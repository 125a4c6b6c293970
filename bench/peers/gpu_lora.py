"""The peer of gpu_bench's adapter cases: steps of AdamW on a Hugging Face llama on a GPU, every weight or an adapter of peft.

  gpu_lora.py config.json BATCH LENGTH RANK [nf4]

One JSON line: the median milliseconds of a step that trains every weight (bf16, fp32 main parameters) and of one that
trains an adapter of all linear layers (bf16 weights, fp32 adapter), both eager with PyTorch's fused AdamW. With nf4 only
the adapter is trained, on bitsandbytes' weights in 4 bits (double quantization, products in bf16); then the rest is
left out. The line also has the peak of the allocator in GiB, of the adapter's steps.
"""
import json
import os
import statistics
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

WARM_UP, STEPS = 4, 10
with open(sys.argv[1]) as file:
    settings = json.load(file)
settings.pop("model_type")
batch, length, rank = map(int, sys.argv[2:5])
four_bit = sys.argv[5:] == ["nf4"]
ids = torch.randint(50257, (batch, length), device="cuda")


class MainWeights:
    """fp32 main parameters beside trained bf16 ones; fp32 ones are trained as they are."""

    def __init__(self, trained):
        self.trained = trained
        self.main = [p.detach().float().clone() if p.dtype != torch.float32 else p for p in trained]
        self.optimizer = torch.optim.AdamW(self.main, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    @torch.no_grad()
    def step(self):
        for p, main in zip(self.trained, self.main):
            if main is not p:
                main.grad, p.grad = p.grad.float(), None
        self.optimizer.step()
        for p, main in zip(self.trained, self.main):
            if main is not p:
                p.copy_(main)
            main.grad = None


def quantize(model):
    """Replaces the linear layers but the head by bitsandbytes' ones, as from_pretrained does with a quantization_config."""
    import bitsandbytes

    for name, old in list(model.named_modules()):
        if not isinstance(old, torch.nn.Linear) or name == "lm_head":
            continue
        new = bitsandbytes.nn.Linear4bit(old.in_features, old.out_features, bias=old.bias is not None,
                                         compute_dtype=torch.bfloat16, compress_statistics=True, quant_type="nf4")
        new.load_state_dict(old.state_dict())
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, new.cuda())
        old.weight = None
    model.is_loaded_in_4bit = True  # read by peft
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def milliseconds(lora):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(**settings, use_cache=False))
    torch.set_default_dtype(torch.float32)
    if four_bit:
        quantize(model)
    if lora:
        model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"))
    trained = [p for p in model.train().parameters() if p.requires_grad]
    optimizer = MainWeights(trained)
    times = []
    for _ in range(WARM_UP + STEPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
        optimizer.step()
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[WARM_UP:])


row = {}
if not four_bit:
    row["full_ms"] = milliseconds(False)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
row["lora_ms"] = milliseconds(True)
print(json.dumps(row | {"peak_gib": torch.cuda.max_memory_allocated() / 2**30}))
