"""The peer of first_step_bench: transformers.Trainer with random weights, until the first step is done.

  first_step.py ARCH WIDTH LAYERS HEADS KV_HEADS MLP     alone, or started by torchrun
"""
import os
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Trainer, TrainerCallback, TrainingArguments

VOCAB, BATCH, LENGTH = 2048, 8, 256
arch = sys.argv[1]
width, layers, heads, kv_heads, mlp = map(int, sys.argv[2:7])
if arch == "gpt2":
    config = GPT2Config(vocab_size=VOCAB, n_embd=width, n_layer=layers, n_head=heads, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
else:
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=width, intermediate_size=mlp, num_hidden_layers=layers,
                         num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=True)
world = int(os.environ.get("WORLD_SIZE", "1"))
ids = torch.randint(VOCAB, (4 * BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
rows = [{"input_ids": row, "labels": row} for row in ids]


class FirstStep(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if int(os.environ.get("RANK", "0")) == 0:
            print("first step", flush=True)


arguments = TrainingArguments(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=BATCH // world, max_steps=1, use_cpu=True,
                              logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, learning_rate=1e-4)
Trainer(model=AutoModelForCausalLM.from_config(config), args=arguments, train_dataset=rows, callbacks=[FirstStep()]).train()
