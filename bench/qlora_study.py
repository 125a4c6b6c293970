#!/usr/bin/env python3
"""How far training an adapter on weights in 4 bits is from peft's on bitsandbytes' weights: losses of equal steps.

  qlora_study.py [--steps 100] [--shape small] [--device cuda]

A random llama and a fresh adapter (rank 16, all linear layers) are made by transformers and peft. Both programs quantize the
model (nf4, double quantization), and train the adapter with AdamW on equal rows of this repository's text, everything else in
fp32. Prints a line of JSON: first and last losses, and the mean and largest relative distance of ours from peft's.

The Python that runs this needs torch, transformers, peft and bitsandbytes.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import bitsandbytes
import torch
from accuracy_study import text_ids
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, RATE = 4096, 1e-3
SHAPES = {"small": dict(hidden_size=512, num_hidden_layers=8, intermediate_size=1408),
          "tiny": dict(hidden_size=128, num_hidden_layers=2, intermediate_size=352)}


def make(folder, shape):
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=VOCABULARY, num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=1024,
                         rms_norm_eps=1e-5, tie_word_embeddings=False, **SHAPES[shape])
    model = LlamaForCausalLM(config).float()
    model.save_pretrained(f"{folder}/base")
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    get_peft_model(model, lora).save_pretrained(f"{folder}/adapter")


def write_rows(path, o):
    ids = text_ids(VOCABULARY)
    chosen = random.Random(0)
    starts = [chosen.randrange(len(ids) - o.length) for _ in range(o.steps * o.batch)]
    rows = [ids[at : at + o.length] for at in starts]
    with open(path, "w") as file:
        file.writelines(json.dumps(dict(input_ids=row)) + "\n" for row in rows)
    return torch.tensor(rows).view(o.steps, o.batch, o.length)


def quantized(folder, device):
    model = LlamaForCausalLM.from_pretrained(f"{folder}/base", dtype=torch.float32)
    for name, old in list(model.named_modules()):
        if not isinstance(old, torch.nn.Linear) or name == "lm_head":
            continue
        new = bitsandbytes.nn.Linear4bit(old.in_features, old.out_features, bias=False, compute_dtype=torch.float32,
                                         compress_statistics=True, quant_type="nf4")
        new.load_state_dict(old.state_dict())
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, new)
    model.is_loaded_in_4bit = True  # read by peft
    return PeftModel.from_pretrained(model.to(device), f"{folder}/adapter", is_trainable=True).train()


def train_peft(folder, rows, device):
    model = quantized(folder, device)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    losses = []
    for batch in rows:
        batch = batch.to(device)
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train_ours(folder, o):
    words = [o.megalith, "train", "--finetuning_type=lora", f"--model_name_or_path={folder}/base",
             f"--adapter_name_or_path={folder}/adapter", "--quantization_bit=4", "--double_quantization",
             f"--dataset={folder}/rows.jsonl", f"--output_dir={folder}/out", f"--cutoff_len={o.length}",
             f"--max_steps={o.steps}", "--train_sampling_strategy=sequential", f"--per_device_train_batch_size={o.batch}",
             f"--learning_rate={RATE}", "--lr_scheduler_type=constant", "--weight_decay=0", "--max_grad_norm=1.0",
             "--logging_steps=1", "--save_strategy=no"] + (["--use_cpu"] if o.device == "cpu" else [])
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"megalith train ended with exit code {done.returncode}:\n{done.stderr[-3000:]}")
    with open(f"{folder}/out/metrics.jsonl") as file:
        return [line["loss"] for line in map(json.loads, file) if "loss" in line]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="small", choices=SHAPES)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--megalith", default=os.path.join(os.path.dirname(HERE), "build", "release", "bin", "megalith"))
    o = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    with tempfile.TemporaryDirectory() as folder:
        make(folder, o.shape)
        rows = write_rows(f"{folder}/rows.jsonl", o)
        ours, theirs = train_ours(folder, o), train_peft(folder, rows, o.device)
    distances = [abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True)]
    print(json.dumps({"bench": "qlora_study", "shape": o.shape, "device": o.device, "steps": o.steps,
                      "ours": [ours[0], ours[-1]], "peft": [theirs[0], theirs[-1]],
                      "mean_distance": sum(distances) / len(distances), "largest_distance": max(distances)}))


if __name__ == "__main__":
    main()
