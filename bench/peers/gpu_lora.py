"""The peer of gpu_bench's adapter case: steps of AdamW on a Hugging Face llama on a GPU, every weight or an adapter of peft.

  gpu_lora.py config.json BATCH LENGTH RANK

One JSON line: the median milliseconds of a step that trains every weight (bf16, fp32 main parameters) and of one that
trains an adapter of all linear layers (bf16 weights, fp32 adapter), both eager with PyTorch's fused AdamW.
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


def milliseconds(lora):
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(**settings, use_cache=False)).to(torch.bfloat16)
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


full = milliseconds(False)
torch.cuda.empty_cache()
print(json.dumps({"full_ms": full, "lora_ms": milliseconds(True)}))
