#!/usr/bin/env python3
"""Five AdamW steps of transformers on the golden models that see, with a frozen language model, for
tests/train/golden_sight_trainer_test.cc.

  make_frozen_language_model.py GOLDEN_HF_FOLDER [MODEL…] > frozen_language_model.json

Towers and projectors are trained as in "train" of each golden.json, whose steps golden/hf/README.md describes. Before
anything is written the steps with a frozen tower are made again: they must be those of golden.json, to 2e-6.
"""
import json
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import transformers
from safetensors.torch import load_file

MEDIA = ["pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw", "second_per_grid_ts", "input_features"]


def part_of(name):
    """The part that a parameter belongs to, by its name in the library."""
    if "audio_tower." in name:
        return "projector" if ".proj1." in name or ".proj2." in name else "tower"
    if "visual." in name:
        return "projector" if "visual.merger." in name else "tower"
    return "language_model"


def load(folder):
    config = json.load(open(os.path.join(folder, "config.json")))
    model = getattr(transformers, config["architectures"][0]).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager")
    return getattr(model, "thinker", model).train()


def inputs_of(golden):
    inputs = {name: golden[name] for name in ["input_ids", "attention_mask", "position_ids", *MEDIA] if name in golden}
    if "audio_feature_lengths" in golden:
        frames = torch.arange(golden["input_features"].shape[2])
        inputs["feature_attention_mask"] = (frames < golden["audio_feature_lengths"].unsqueeze(1)).long()
    return inputs


def train(folder, golden, settings, frozen):
    torch.manual_seed(0)
    model = load(folder)
    trained = []
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part_of(name) not in frozen)
        trained += [parameter] if parameter.requires_grad else []
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in trained if p.dim() >= 2], "weight_decay": settings["weight_decay"]},
         {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0}],
        lr=settings["lr"], betas=settings["betas"], eps=settings["eps"])
    inputs, labels = inputs_of(golden), golden["labels"][:, 1:]

    def loss_now():
        logits = model(**inputs, use_cache=False).logits[:, :-1].float()
        total = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1),
                                                  ignore_index=-100, reduction="sum")
        return total / (labels != -100).sum()

    losses, norms = [], []
    for _ in range(settings["steps"]):
        optimizer.zero_grad()
        loss = loss_now()
        loss.backward()
        losses.append(float(loss.detach()))
        norms.append(float(torch.nn.utils.clip_grad_norm_(trained, settings["clip"])))
        optimizer.step()
    with torch.no_grad():
        losses.append(float(loss_now()))
    return losses, norms


def main():
    root = sys.argv[1]
    names = sys.argv[2:] or sorted(n for n in os.listdir(root)
                                   if os.path.exists(os.path.join(root, n, "golden.json"))
                                   and "train_frozen_tower" in json.load(open(os.path.join(root, n, "golden.json"))))
    out = {"made_by": f"transformers {transformers.__version__}, torch {torch.__version__}", "models": {}}
    stdout, sys.stdout = sys.stdout, sys.stderr
    for name in names:
        folder = os.path.join(root, name)
        golden = load_file(os.path.join(folder, "golden.safetensors"))
        known = json.load(open(os.path.join(folder, "golden.json")))["train_frozen_tower"]
        losses, norms = train(folder, golden, known, {"tower"})
        worst = max(abs(a / b - 1) for a, b in zip(losses + norms, known["losses"] + known["grad_norms"]))
        print(f"{name}: the steps of train_frozen_tower again, to {worst:.1e}")
        if worst > 2e-6:
            sys.exit(f"{name}: not the steps of golden.json")
        settings = {key: known[key] for key in ["steps", "lr", "betas", "eps", "weight_decay", "clip"]}
        losses, norms = train(folder, golden, settings, {"language_model"})
        out["models"][name] = {**settings, "frozen": ["language_model"], "losses": losses, "grad_norms": norms}
    stdout.write(json.dumps(out).replace('"models": {', '"models": {\n').replace('}, "qwen', '},\n"qwen') + "\n")


if __name__ == "__main__":
    main()
