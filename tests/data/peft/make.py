"""Writes the adapters of this folder with peft, and what peft computes with them: make.py GOLDEN_MODELS [NAME…].

GOLDEN_MODELS is tests/data/golden/hf. Each folder gets adapter_config.json and adapter_model.safetensors as peft writes
them, and expected.safetensors: `logits`, the first 64 columns for the ids of tests/model/random_adapter.h.
`python3 -m pip install -r scripts/interop_requirements.txt` has the versions (scripts/interop.sh --python).
"""
import json
import os
import pathlib
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

EVERY = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {
    "llama_patterns": ("llama", dict(
        target_modules=EVERY, layers_to_transform=[0, 1], layers_pattern="layers", exclude_modules=["1.self_attn.o_proj"],
        rank_pattern={"q_proj": 3, r"layers\.1\.mlp\.up_proj": 1, "up_proj": 5}, alpha_pattern={"k_proj": 9, r"[01]\.mlp\.gate_proj": 1})),
    "qwen2_expression": ("qwen2", dict(
        target_modules=r".*\.(0|2)\.self_attn\.[qv]_proj|.*\.mlp\.(?!gate)\w+_proj", exclude_modules=r".*\.1\.mlp\.down_proj",
        use_rslora=True, rank_pattern={"v_proj": 4})),
    "llama_embedding": ("llama", dict(target_modules=["q_proj", "embed_tokens", "lm_head"], alpha_pattern={"embed_tokens": 7})),
    "qwen2_embedding": ("qwen2", dict(target_modules=["k_proj", "embed_tokens"], rank_pattern={"embed_tokens": 3})),
    "gpt2_conv": ("gpt2", dict(target_modules=["c_attn", "mlp.c_proj", "wte"], fan_in_fan_out=True)),
    "gpt2_biases": ("gpt2", dict(target_modules=["c_attn", "c_fc"], modules_to_save=["ln_f"], fan_in_fan_out=True, bias="all")),
    "qwen2_biases": ("qwen2", dict(target_modules=["q_proj", "v_proj", "up_proj"], layers_to_transform=[0, 2], bias="lora_only")),
    "qwen2_moe_biases": ("qwen2_moe", dict(target_modules=["k_proj"], bias="all")),
    "qwen3_moe_words": ("qwen3_moe", dict(target_modules=EVERY)),
    "mixtral_tensors": ("mixtral", dict(
        target_modules=["q_proj", "gate"], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"], use_rslora=True,
        rank_pattern={"experts.gate_up_proj": 3}, alpha_pattern={"down_proj": 5})),
    "qwen2_moe_tensors": ("qwen2_moe", dict(
        target_modules=["v_proj", "shared_expert_gate"],
        target_parameters=["1.mlp.experts.down_proj", "mlp.gate.weight", "shared_expert.up_proj.weight"])),
    "glm4_moe_linear": ("glm4_moe", dict(target_modules="all-linear")),
    "deepseek_v3_up": ("deepseek_v3", dict(
        target_modules=["q_b_proj"], target_parameters=["experts.gate_up_proj", "shared_experts.gate_proj.weight", "mlp.down_proj.weight"])),
}


def make(models, name, to):
    base, options = CASES[name]
    model = AutoModelForCausalLM.from_pretrained(models / base, dtype=torch.float32, attn_implementation="eager")
    model = get_peft_model(model, LoraConfig(r=2, lora_alpha=4, task_type="CAUSAL_LM", **options)).eval()
    generator = torch.Generator().manual_seed(7)
    for parameter_name, parameter in model.named_parameters():
        if "lora_" in parameter_name or (parameter_name.endswith(".bias") and parameter.requires_grad):
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    with torch.no_grad():  # peft trains an embedding only by its update; a copy that differs shows that it is loaded
        if name == "llama_embedding":
            model.get_input_embeddings().base_layer.weight[5] += 0.5
    model.save_pretrained(to)
    config = json.loads((to / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = base
    (to / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (to / "README.md").unlink(missing_ok=True)
    ids = ((torch.arange(32) * 37 + 5) % 200).view(2, 16)
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    save_file({"logits": logits.flatten(0, 1)[:, :64].contiguous()}, to / "expected.safetensors")


if __name__ == "__main__":
    here = pathlib.Path(__file__).parent
    for name in sys.argv[2:] or CASES:
        make(pathlib.Path(sys.argv[1]), name, here / name)
