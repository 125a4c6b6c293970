"""What peft makes of an adapter: logits.py MODEL ADAPTER OUT.safetensors, for the ids of tests/model/adapter_test.cc."""
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, attn_implementation="eager")
model = PeftModel.from_pretrained(base, sys.argv[2]).eval()
ids = ((torch.arange(32) * 37 + 5) % 200).view(2, 16)
with torch.no_grad():
    logits = model(input_ids=ids).logits
save_file({"logits": logits.contiguous()}, sys.argv[3])
