#!/usr/bin/env python3
"""Twenty steps of transformers.Trainer on the golden models, for tests/train/hf_trainer_test.cc.

  make.py GOLDEN_HF_FOLDER [MODEL…] > losses.json

One micro-batch of 2 rows after the other, two of them a step, sequences of different lengths padded on the right, a cosine
schedule with warm-up, clipping and weight decay. The loss of a step is what the Trainer itself logs, read before it is rounded.
"""
import json
import os
import random
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import transformers
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

STEPS, BATCH, ACCUMULATION = 20, 2, 2
SETTINGS = dict(learning_rate=1e-3, lr_scheduler_type="cosine", warmup_steps=3, weight_decay=0.1, adam_beta1=0.9, adam_beta2=0.95,
                adam_epsilon=1e-8, max_grad_norm=1.0)


def make_rows(vocab):
    rng = random.Random(5)
    rows = []
    for _ in range(STEPS * BATCH * ACCUMULATION):
        ids = [rng.randrange(vocab) for _ in range(rng.randrange(6, 25))]
        prompt = rng.randrange(1, 4)  # at least one: for gpt2 the Trainer would count a label of the first token
        rows.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    return rows


def collate(rows):
    longest = max(len(r["input_ids"]) for r in rows)
    pad = lambda key, value: torch.tensor([r[key] + [value] * (longest - len(r[key])) for r in rows])
    return {"input_ids": pad("input_ids", 0), "labels": pad("labels", -100),
            "attention_mask": torch.tensor([[1] * len(r["input_ids"]) + [0] * (longest - len(r["input_ids"])) for r in rows])}


class Sequential(Trainer):
    def _get_train_sampler(self, dataset=None):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Steps(TrainerCallback):
    """Sums what training_step gives: the Trainer has divided each micro-batch's loss by the tokens of the whole step."""

    def __init__(self):
        self.losses, self.norms, self.rates, self.sum = [], [], [], 0.0

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "grad_norm" in logs:
            self.norms.append(float(logs["grad_norm"]))
            self.rates.append(float(logs["learning_rate"]))

    def on_step_end(self, args, state, control, **kwargs):
        self.losses.append(self.sum)
        self.sum = 0.0


def train(folder, rows):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    steps = Steps()

    class Run(Sequential):
        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            steps.sum += float(loss)
            return loss
    arguments = TrainingArguments(output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=STEPS, per_device_train_batch_size=BATCH,
                                  gradient_accumulation_steps=ACCUMULATION, logging_steps=1, save_strategy="no", report_to=[],
                                  disable_tqdm=True, remove_unused_columns=False, **SETTINGS)
    Run(model=model, args=arguments, train_dataset=rows, data_collator=collate, callbacks=[steps]).train()
    return {"losses": steps.losses, "grad_norms": steps.norms, "learning_rates": steps.rates}


def main():
    root = sys.argv[1]
    names = sys.argv[2:] or sorted(n for n in os.listdir(root) if os.path.exists(os.path.join(root, n, "model.safetensors")))
    configs = {n: json.load(open(os.path.join(root, n, "config.json"))) for n in names}
    rows = make_rows(min(c["vocab_size"] for c in configs.values()))
    out = {"made_by": f"transformers {transformers.__version__}, torch {torch.__version__}", "micro_batch_size": BATCH,
           "gradient_accumulation_steps": ACCUMULATION, "settings": SETTINGS, "rows": rows, "models": {}}
    stdout, sys.stdout = sys.stdout, sys.stderr
    for name in names:
        out["models"][name] = train(os.path.join(root, name), rows)
    text = json.dumps(out)
    stdout.write(text.replace('{"input_ids"', '\n{"input_ids"').replace('"models": {', '\n"models": {').replace('"losses"', '\n"losses"') + "\n")


if __name__ == "__main__":
    main()
