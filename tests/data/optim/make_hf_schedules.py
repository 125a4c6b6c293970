"""Writes hf_schedules.json: learning rates of transformers' schedulers beside the options that ask Megalith for them.

Run with a Python that has torch and transformers: python3 make_hf_schedules.py > hf_schedules.json
"""

import json
import sys

import torch
import transformers
from transformers import TrainingArguments
from transformers.optimization import get_scheduler

STEPS = 40
LR = 3e-4

# Theirs: name, kwargs, warm-up as TrainingArguments takes it. Ours, where it is written differently: type, kwargs.
CASES = [
    ("linear", {}, 0, {}),
    ("linear", {}, 7, {}),
    ("linear", {}, 0.1, {}),
    ("linear", {}, 0.07, {}),
    ("linear", {}, 39, {}),
    ("cosine", {}, 0, {}),
    ("cosine", {}, 6, {}),
    ("cosine", {}, 0.33, {}),
    ("constant", {}, 0, {}),
    ("constant_with_warmup", {}, 9, {}),
    ("inverse_sqrt", {}, 5, {}),
    ("inverse_sqrt", {}, 1, {}),
    ("cosine_with_min_lr", {"min_lr": 3e-5}, 6, {}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.1}, 0, {}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.25}, 0.2, {}),
    ("polynomial", {}, 4, {"type": "linear", "kwargs": {"min_lr": 1e-7}}),
    ("polynomial", {"lr_end": 1e-5}, 0, {"type": "linear", "kwargs": {"min_lr": 1e-5}}),
    ("warmup_stable_decay", {"num_decay_steps": 10, "decay_type": "cosine"}, 5,
     {"kwargs": {"num_decay_steps": 10, "lr_wsd_decay_style": "cosine"}}),
    ("warmup_stable_decay", {"num_decay_steps": 12, "decay_type": "linear", "min_lr_ratio": 0.1}, 0,
     {"kwargs": {"wsd_decay_steps": 12, "lr_wsd_decay_style": "linear", "min_lr": 3e-5}}),
    ("warmup_stable_decay", {"num_decay_steps": 12, "decay_type": "1-sqrt", "min_lr_ratio": 0.1}, 8,
     {"kwargs": {"wsd_decay_steps": 12, "lr_wsd_decay_style": "minus_sqrt", "min_lr": 3e-5, "init_lr": 3e-5}}),
]


def rates(name, kwargs, warmup):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    warmup_steps = TrainingArguments(output_dir="unused", warmup_steps=warmup).get_warmup_steps(STEPS)
    scheduler = get_scheduler(name, optimizer, warmup_steps, STEPS, dict(kwargs))
    out = []
    for _ in range(STEPS + 1):
        out.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return out


def main():
    cases = []
    for name, kwargs, warmup, ours in CASES:
        cases.append({
            "lr_scheduler_type": ours.get("type", name),
            "lr_scheduler_kwargs": ours.get("kwargs", kwargs),
            "warmup_steps": warmup,
            "theirs": {"name": name, "kwargs": kwargs},
            "lr": rates(name, kwargs, warmup),
        })
    head = {"source": f"transformers {transformers.__version__}, torch {torch.__version__}",
            "max_steps": STEPS, "learning_rate": LR}
    text = json.dumps(head)[:-1] + ', "cases": [\n' + ",\n".join(json.dumps(c) for c in cases) + "\n]}\n"
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
