"""What peft makes of adapters: logits.py MODEL ADAPTER OUT.safetensors …, for the ids of tests/model/random_adapter.h."""
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

ids = ((torch.arange(32) * 37 + 5) % 200).view(2, 16)
words = sys.argv[1:]
for path, adapter, out in zip(words[::3], words[1::3], words[2::3]):
    base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    model = PeftModel.from_pretrained(base, adapter).eval()
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    save_file({"logits": logits.contiguous()}, out)
