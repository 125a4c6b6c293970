"""The peer of lora_bench: steps of AdamW on a Hugging Face llama, every weight or an adapter of peft.

  lora.py RANK fp32|bf16 WIDTH LAYERS HEADS KV_HEADS MLP

One command a line on stdin: `full N` or `lora N` -> {"ms": [N numbers]} of whole steps, after one that does not count.
"""
import json
import os
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB, BATCH, LENGTH = 2048, 8, 256
rank, precision = int(sys.argv[1]), sys.argv[2]
width, layers, heads, kv_heads, mlp = map(int, sys.argv[3:8])
config = LlamaConfig(vocab_size=VOCAB, hidden_size=width, intermediate_size=mlp, num_hidden_layers=layers,
                     num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=True)
dtype = torch.bfloat16 if precision == "bf16" else torch.float32
ids = torch.randint(VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))


def make(lora):
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(dtype)
    if lora:
        model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"))
    trained = [p for p in model.parameters() if p.requires_grad]
    return model.train(), trained, torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


made = {"full": make(False), "lora": make(True)}


def step(model, trained, optimizer):
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    model(input_ids=ids, labels=ids).loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    return 1000 * (time.perf_counter() - start)


for line in sys.stdin:
    kind, count = line.split()
    step(*made[kind])
    print(json.dumps({"ms": [step(*made[kind]) for _ in range(int(count))]}), flush=True)
