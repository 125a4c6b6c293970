"""What peft makes of adapters: logits.py MODEL ADAPTER OUT.safetensors …, for the ids of tests/model/random_adapter.h.

A part of the adapter that peft cannot place is an error.
"""
import os
import sys
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

warnings.filterwarnings("error", message=".*(missing|unexpected).*adapter.*")
words = sys.argv[1:]
for path, adapter, out in zip(words[::3], words[1::3], words[2::3]):
    config = AutoConfig.from_pretrained(path)
    kind = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    ids = ((torch.arange(32) * 37 + 5) % min(200, config.get_text_config().vocab_size)).view(2, 16)
    base = kind.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    model = PeftModel.from_pretrained(base, adapter).eval()
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    save_file({"logits": logits.contiguous()}, out)
