"""Writes PiSSA adapters with peft, and what peft computes with them: make.py GOLDEN_MODELS [NAME…].

GOLDEN_MODELS is tests/data/golden/hf. Each folder gets
  adapter_config.json, adapter_model.safetensors  the adapter after five steps of AdamW, as peft writes it: relative to
                                                  the residual, init_lora_weights "pissa"
  start.safetensors                               A and B before the first step, under the same names, and what is left
                                                  of the weights of layer 1: residual.<name in the model's files>
  golden.json                                     losses and gradient norms of the steps (golden/hf/README.md: train)
  expected.safetensors                            logits after the steps, the first 64 columns for the ids of
                                                  tests/model/random_adapter.h
peft 0.21.2, transformers 5.22.2, torch 2.11.0 on a CPU (scripts/interop.sh --python has them).
"""
import json
import os
import pathlib
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

EVERY = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {
    "llama": dict(r=4, lora_alpha=8, target_modules=EVERY),
    "gpt2": dict(r=3, lora_alpha=5, target_modules=["c_attn", "c_fc", "mlp.c_proj"], fan_in_fan_out=True, use_rslora=True),
}
TRAIN = dict(steps=5, lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1, clip=1.0)


def loss_of(model, batch):
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=-100)


def make(models, name, to):
    to.mkdir(exist_ok=True)
    batch = load_file(models / name / "golden.safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        models / name, dtype=torch.float32, attn_implementation="eager")
    config = peft.LoraConfig(init_lora_weights="pissa", task_type="CAUSAL_LM", **CASES[name])
    model = peft.get_peft_model(model, config).eval()
    trained = {key: value for key, value in model.named_parameters() if value.requires_grad}
    start = {key.replace(".default.weight", ".weight"): value.detach().clone() for key, value in trained.items()}
    for key, value in model.named_parameters():
        if ".1." in key and "base_layer.weight" in key:
            start["residual." + key.removeprefix("base_model.model.").replace(".base_layer", "")] = value.detach().clone()
    save_file(start, to / "start.safetensors")

    train = dict(TRAIN, losses=[], grad_norms=[])
    optimizer = torch.optim.AdamW(trained.values(), lr=TRAIN["lr"], betas=TRAIN["betas"], eps=TRAIN["eps"],
                                  weight_decay=TRAIN["weight_decay"])
    for _ in range(TRAIN["steps"]):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        train["losses"].append(loss.item())
        train["grad_norms"].append(torch.nn.utils.clip_grad_norm_(trained.values(), TRAIN["clip"]).item())
        optimizer.step()
    with torch.no_grad():
        train["losses"].append(loss_of(model, batch).item())
        ids = ((torch.arange(32) * 37 + 5) % 200).view(2, 16)
        save_file({"logits": model(input_ids=ids).logits.flatten(0, 1)[:, :64].contiguous()}, to / "expected.safetensors")
    model.save_pretrained(to)
    written = json.loads((to / "adapter_config.json").read_text())
    written["base_model_name_or_path"] = name
    written["target_modules"] = sorted(written["target_modules"])
    (to / "adapter_config.json").write_text(json.dumps(written, indent=1) + "\n")
    (to / "README.md").unlink(missing_ok=True)
    (to / "golden.json").write_text(json.dumps({"train": train}, indent=1) + "\n")
    print(name, train["losses"], train["grad_norms"])


if __name__ == "__main__":
    here = pathlib.Path(__file__).parent
    for name in sys.argv[2:] or CASES:
        make(pathlib.Path(sys.argv[1]), name, here / name)
