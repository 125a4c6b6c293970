#!/usr/bin/env python3
"""Makes distillation.json: losses and steps of a student that is trained towards a teacher.

    make_distillation.py GOLDEN_HF_FOLDER

Made with trl 0.24 (GKDTrainer.generalized_jsd_loss), transformers 5.22 and torch 2.11 on the CPU in fp32, eager
attention. The student is GOLDEN_HF_FOLDER/llama, the teacher GOLDEN_HF_FOLDER/preference/ref, the batch that of
llama/golden.safetensors. labels are not shifted: position t predicts labels[t + 1].

    cases.NAME.options   kd_loss, kd_beta, kd_temperature, kd_ratio
    cases.NAME.kd_loss, lm_loss, loss, grad_norm   at the start: kd_loss by trl, lm_loss by torch's cross_entropy, loss
                         = (1 - kd_ratio) lm_loss + kd_ratio kd_loss; all are means over the labelled tokens
    cases.NAME.train     five steps of AdamW on that batch, as in the golden.json of the models: losses before each step
                         and after the last, and gradient norms before clipping
"""

import json
import os
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from trl import GKDTrainer

STEPS, RATE, BETAS, EPS, DECAY, CLIP = 5, 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
CASES = {
    "forward_kl": ("forward_kl", 0.5, 1.0, 1.0),
    "forward_kl_hot": ("forward_kl", 0.5, 2.0, 0.5),
    "reverse_kl": ("reverse_kl", 0.5, 1.0, 1.0),
    "reverse_kl_cold": ("reverse_kl", 0.5, 0.7, 0.25),
    "jsd": ("jsd", 0.5, 1.0, 1.0),
    "jsd_tilted": ("jsd", 0.1, 1.5, 0.7),
    "jsd_zero": ("jsd", 0.0, 1.0, 1.0),
    "jsd_one": ("jsd", 1.0, 1.0, 1.0),
}


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def losses(student, teacher_logits, batch, case):
    kind, beta, temperature, ratio = case
    logits = student(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    labels = batch["labels"][:, 1:]
    beta = {"forward_kl": 0, "reverse_kl": 1}.get(kind, beta)
    kd = GKDTrainer.generalized_jsd_loss(logits, teacher_logits[:, :-1], labels, beta=beta, temperature=temperature)
    lm = F.cross_entropy(logits.reshape(-1, logits.size(-1)), labels.reshape(-1), ignore_index=-100)
    return kd, lm, (1 - ratio) * lm + ratio * kd


def run(folder, teacher_logits, batch, case):
    student = load(os.path.join(folder, "llama")).train()
    decayed = [p for p in student.parameters() if p.dim() >= 2]
    others = [p for p in student.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
        lr=RATE, betas=BETAS, eps=EPS)
    first, values, norms = None, [], []
    for _ in range(STEPS):
        kd, lm, loss = losses(student, teacher_logits, batch, case)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(student.parameters(), CLIP)
        first = first or {"kd_loss": kd.item(), "lm_loss": lm.item(), "loss": loss.item(), "grad_norm": norm.item()}
        values.append(loss.item())
        norms.append(norm.item())
        optimizer.step()
    with torch.no_grad():
        values.append(losses(student, teacher_logits, batch, case)[2].item())
    names = ("kd_loss", "kd_beta", "kd_temperature", "kd_ratio")
    train = {"steps": STEPS, "lr": RATE, "betas": BETAS, "eps": EPS, "weight_decay": DECAY, "clip": CLIP,
             "losses": values, "grad_norms": norms}
    return {"options": dict(zip(names, case)), **first, "train": train}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    folder = sys.argv[1]
    batch = load_file(os.path.join(folder, "llama", "golden.safetensors"))
    batch = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
    with torch.no_grad():
        teacher = load(os.path.join(folder, "preference", "ref")).eval()
        teacher_logits = teacher(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    made = {"student": "llama", "teacher": "preference/ref", "batch": "llama/golden.safetensors",
            "cases": {name: run(folder, teacher_logits, batch, case) for name, case in CASES.items()}}
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "distillation.json")
    with open(out, "w", encoding="utf-8") as file:
        json.dump(made, file, indent=1)
        file.write("\n")


main()
