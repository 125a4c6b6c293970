"""Writes the DoRA adapters of this folder and what peft computes with them: make_dora.py [NAME…].

The fields are those of ../README.md. Run with peft 0.21.2, transformers 5.22.2 and torch 2.11.0 on a CPU
(scripts/interop.sh --python).
"""
import json
import os
import pathlib
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import peft
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent
EVERY = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# name: base, seed and options. qwen2 has biases and a part of a fused weight, gpt2 transposed weights and a fused module.
CASES = {
    "llama_dora": ("llama", 501, dict(r=4, lora_alpha=8, target_modules=EVERY)),
    "qwen2_dora": ("qwen2", 502, dict(r=4, lora_alpha=6, target_modules=["q_proj", "v_proj", "o_proj", "up_proj"], use_rslora=True)),
    "gpt2_dora": ("gpt2", 503, dict(r=4, lora_alpha=8, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True)),
}
TRAIN = dict(steps=5, lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1, clip=1.0)


def samples(tensor):
    flat = tensor.detach().flatten()
    count = min(32, flat.numel())
    return flat[(7919 * torch.arange(count)) % flat.numel()].clone()


def token_losses(model, batch):
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    losses = torch.zeros(batch["labels"].shape)
    each = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=-100, reduction="none")
    return logits, torch.cat([each.view(losses.shape[0], -1), losses[:, :1]], 1)


def written_name(name):
    return name.replace(".default.weight", "" if "magnitude" in name else ".weight")


def make(name):
    base, seed, options = CASES[name]
    to = HERE / name
    batch = load_file(HERE.parent / base / "golden.safetensors")
    count = (batch["labels"][:, 1:] != -100).sum()
    load = lambda: transformers.AutoModelForCausalLM.from_pretrained(
        HERE.parent / base, dtype=torch.float32, attn_implementation="eager").eval()
    model = peft.get_peft_model(load(), peft.LoraConfig(use_dora=True, task_type="CAUSAL_LM", **options)).eval()
    generator = torch.Generator().manual_seed(seed)
    trained = {}
    for parameter_name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        trained[written_name(parameter_name)] = parameter
        with torch.no_grad():
            if "magnitude" in parameter_name:  # a row becomes longer or shorter by up to a quarter
                parameter *= 0.75 + 0.5 * torch.rand(parameter.shape, generator=generator)
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    model.save_pretrained(to)
    config = json.loads((to / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = base
    config["target_modules"] = sorted(config["target_modules"])
    (to / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")
    (to / "README.md").unlink(missing_ok=True)

    with torch.no_grad(), model.disable_adapter():
        base_loss = token_losses(model, batch)[1].sum() / count
    logits, losses = token_losses(model, batch)
    loss = losses.sum() / count
    loss.backward()
    tensors = {key: batch[key].clone() for key in ("input_ids", "attention_mask", "labels")}
    tensors["logits"], tensors["token_losses"] = logits[0, :8].detach().clone(), losses.detach().clone()
    params = {}
    for key, parameter in trained.items():
        grad = parameter.grad.double()
        params[key] = {"shape": list(parameter.shape), "grad_l2": grad.norm().item(), "grad_sum": grad.sum().item()}
        tensors["grad." + key] = samples(parameter.grad)
    norm = torch.stack([p.grad.double().norm() for p in trained.values()]).norm()
    golden = {
        "name": name, "base": base,
        "versions": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__,
                     "tokenizers": tokenizers.__version__, "peft": peft.__version__},
        "seed": seed, "r": options["r"], "alpha": options["lora_alpha"], "use_dora": True,
        "base_loss": base_loss.item(), "loss": loss.item(), "grad_norm": norm.item()}

    # Hugging Face's trainer decays by names, which leaves out biases and norms, but not magnitudes.
    train = dict(TRAIN, losses=[], grad_norms=[])
    optimizer = torch.optim.AdamW(trained.values(), lr=TRAIN["lr"], betas=TRAIN["betas"], eps=TRAIN["eps"],
                                  weight_decay=TRAIN["weight_decay"])
    state = {key: parameter.detach().clone() for key, parameter in trained.items()}
    for _ in range(TRAIN["steps"]):
        optimizer.zero_grad()
        loss = token_losses(model, batch)[1].sum() / count
        loss.backward()
        train["losses"].append(loss.item())
        train["grad_norms"].append(torch.nn.utils.clip_grad_norm_(trained.values(), TRAIN["clip"]).item())
        optimizer.step()
    with torch.no_grad():
        train["losses"].append((token_losses(model, batch)[1].sum() / count).item())
        for key, parameter in trained.items():
            parameter.copy_(state[key])
        merged = token_losses(model.merge_and_unload(), batch)[0][0, :8]
    tensors["merged_logits"] = merged.clone()
    golden |= {"train": train, "params": params,
               "noise": {"logits_adapter_vs_merged": (merged - tensors["logits"]).abs().max().item()}}
    (to / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
    save_file(tensors, to / "golden.safetensors")
    print(name, golden["base_loss"], golden["loss"], train["losses"], golden["noise"])


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        make(name)
