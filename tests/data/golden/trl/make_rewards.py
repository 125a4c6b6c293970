#!/usr/bin/env python3
"""make_rewards.py GOLDEN: writes rewards.json, training of models that score sequences, by trl and transformers.

GOLDEN is tests/data/golden. The data is that of hf/preference: rows 0 to 3 of its golden.safetensors are chosen answers,
rows 4 to 7 the rejected ones of the same prompts; ids are taken modulo the vocabulary of a model. The models are those of hf/llama and hf/qwen3 with a head that is
drawn here ("score", rounded to fp32 numbers that JSON keeps). Nothing is computed here: RewardTrainer trains on all
pairs at once, and classifiers on all eight rows, for five steps of torch.optim.AdamW (CPU, fp32, eager attention). The
script writes down losses (the last one after the fifth step), gradient norms, metrics, and the scores at the start.

Made with trl 1.16.0, transformers 5.22.2, torch 2.11.0:  python3 tests/data/golden/trl/make_rewards.py tests/data/golden
"""
import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers
import trl
from datasets import Dataset
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast
from trl import RewardConfig, RewardTrainer

STEPS, RATE, CLIP, PAD = 5, 1e-4, 1.0, 0
BETAS, EPSILON = (0.9, 0.95), 1e-8
METRICS = ("accuracy", "margin", "mean_reward", "min_reward", "max_reward")
REWARDS = {
    "plain": {},
    "margin": {"margins": [0.5, 0.0, 1.25, -0.25]},
    "centered": {"center_rewards_coefficient": 0.05},
}
LABELS = {
    "single_label_classification": {"num_labels": 3, "labels": [0, 2, 1, 1, 0, 2, 2, 0]},
    "regression": {"num_labels": 1, "labels": [0.5, -1.0, 0.25, 2.0, 0.0, 1.5, -0.75, 0.125]},
    "multi_label_classification": {
        "num_labels": 4,
        "labels": [[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0],
                   [0, 0, 1, 1], [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]},
}


class Recorded(RewardTrainer):
    """Keeps the loss of every micro-batch, which the log rounds."""

    def compute_loss(self, *args, **kwargs):
        result = super().compute_loss(*args, **kwargs)
        self.heard.append((result[0] if isinstance(result, tuple) else result).item())
        return result


def model_of(folder, labels, seed):
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=labels, dtype=torch.float32,
                                                               attn_implementation="eager")
    with torch.no_grad():
        model.score.weight.copy_(torch.randn_like(model.score.weight) * 0.2)
    model.config.pad_token_id = PAD
    return model


def padded(rows):
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def scores_of(model, rows):
    with torch.no_grad():
        ids = padded(rows)
        return model(input_ids=ids, attention_mask=ids.ne(PAD).long()).logits.tolist()


def rewards(folder, rows, how, scratch):
    model = model_of(folder, 1, seed=1)
    result = {"options": how, "score": model.score.weight.tolist(), "logits": scores_of(model, rows)}
    data = {"chosen_ids": rows[:4], "rejected_ids": rows[4:]}
    if "margins" in how:
        data["margin"] = how["margins"]
    data = Dataset.from_dict(data)
    config = RewardConfig(output_dir=scratch, max_steps=STEPS, learning_rate=RATE, lr_scheduler_type="constant",
                          weight_decay=0.0, adam_beta1=BETAS[0], adam_beta2=BETAS[1], adam_epsilon=EPSILON,
                          max_grad_norm=CLIP, logging_steps=1, report_to=[], save_strategy="no", use_cpu=True, bf16=False,
                          gradient_checkpointing=False, disable_tqdm=True, max_length=None,
                          per_device_train_batch_size=4, per_device_eval_batch_size=4,
                          center_rewards_coefficient=how.get("center_rewards_coefficient"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({str(i): i for i in range(512)}, "0")),
                                        pad_token=str(PAD), eos_token="2")
    trainer = Recorded(model=model, args=config, train_dataset=data, eval_dataset=data, processing_class=tokenizer)
    trainer.heard = []
    trainer.train()
    log = [line for line in trainer.state.log_history if "grad_norm" in line]
    result |= {"losses": list(trainer.heard), "grad_norms": [line["grad_norm"] for line in log]}
    result |= {key: [line[key] for line in log] for key in METRICS}
    trainer.heard.clear()
    trainer.evaluate()
    result["losses"].append(trainer.heard[0])
    return result


def classes(folder, rows, problem, how):
    model = model_of(folder, how["num_labels"], seed=2)
    model.config.problem_type = problem
    result = dict(how) | {"score": model.score.weight.tolist(), "logits": scores_of(model, rows)}
    labels = torch.tensor(how["labels"], dtype=torch.long if problem.startswith("single") else torch.float)
    ids = padded(rows)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=0.0)
    losses, norms = [], []
    for step in range(STEPS + 1):
        loss = model(input_ids=ids, attention_mask=ids.ne(PAD).long(), labels=labels).loss
        losses.append(loss.item())
        if step == STEPS:
            break
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
    return result | {"losses": losses, "grad_norms": norms}


def main(golden):
    data = load_file(golden / "hf/preference/golden.safetensors")
    result = {"made_with": {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__},
              "pad_token_id": PAD,
              "optimizer": {"steps": STEPS, "lr": RATE, "betas": BETAS, "eps": EPSILON, "weight_decay": 0.0, "clip": CLIP},
              "models": {}}
    for name in ("llama", "qwen3"):
        folder = golden / "hf" / name
        vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
        rows = [(ids[mask.bool()] % vocabulary).tolist() for ids, mask in zip(data["input_ids"], data["attention_mask"])]
        assert all(row[-1] != PAD for row in rows)
        with tempfile.TemporaryDirectory() as scratch:
            trained = {case: rewards(folder, rows, how, scratch) for case, how in REWARDS.items()}
        result["models"][name] = {
            "rewards": trained, "labels": {problem: classes(folder, rows, problem, how) for problem, how in LABELS.items()}}
    (golden / "trl/rewards.json").write_text(json.dumps(result, indent=1) + "\n")


main(Path(sys.argv[1]))
