"""Prints the loss of a batch by a model whose vocabulary has grown, or by a base and an adapter with grown rows.

python grown_loss.py BATCH MODEL [ADAPTER]  (transformers 5, peft 0.21). For vocabulary_command_test.cc. The tokenizer of
the model or adapter must know the new tokens.
"""
import sys

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

batch, folder, *adapter = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(adapter[0] if adapter else folder)
assert tokenizer.encode("kilonova<call>", add_special_tokens=False) == [512, 513], tokenizer.encode("kilonova<call>")
assert tokenizer.decode([512, 513], skip_special_tokens=True) == "kilonova"
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
if adapter:
    # As LLaMA-Factory and peft's documentation do: the base grows first, then the adapter brings the rows.
    model.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=64)
    model = PeftModel.from_pretrained(model, adapter[0])
assert model.config.vocab_size == 576
ids = load_file(batch)["input_ids"]
with torch.no_grad():
    print(model(input_ids=ids, labels=ids).loss.item())
