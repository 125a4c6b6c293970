"""Writes reward models as LLaMA-Factory does, and what it computes with them: make.py GOLDEN, with GOLDEN tests/data/golden.

  full/value_head.safetensors    beside the golden llama, which LLaMA-Factory writes again as it was
  pickled/value_head.bin         the same head, with save_safetensors false
  adapter/                       an adapter on the golden llama with a head of its own
  golden.json                    texts (chosen answers, then rejected ones; all end with the token 2), the scores of
                                 their last tokens, and the losses of five steps on all pairs from full/ and adapter/

The head is trl's AutoModelForCausalLMWithValueHead, without its dropout; LLaMA-Factory's fix_valuehead_checkpoint writes it,
and its PairwiseTrainer.compute_loss computes losses. trl 0.9.6, llamafactory 0.9.5, peft 0.21.2, transformers 5.22.2,
torch 2.11.0 on a CPU, with DISABLE_VERSION_CHECK=1.
"""
import json
import pathlib
import shutil
import sys
import tempfile
import types

import peft
import torch
import transformers
sys.modules.setdefault("torchaudio", types.ModuleType("torchaudio"))  # LLaMA-Factory imports it for sounds alone
from llamafactory.train.callbacks import fix_valuehead_checkpoint
from llamafactory.train.rm.trainer import PairwiseTrainer
from safetensors.torch import load_file, save_file
from trl.models.modeling_value_head import AutoModelForCausalLMWithValueHead

END, STEPS, RATE = 2, 5, 1e-4


def model_of(golden, adapter, seed, bias):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_pretrained(golden / "hf/llama", dtype=torch.float32, attn_implementation="eager")
    if adapter:
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.05)
    model = AutoModelForCausalLMWithValueHead.from_pretrained(model)
    model.v_head.dropout.p = 0.0
    with torch.no_grad():
        model.v_head.summary.weight.copy_(torch.randn_like(model.v_head.summary.weight) * 0.2)
        model.v_head.summary.bias.fill_(bias)
    return model


# As Trainer saves it, before LLaMA-Factory takes the head out.
def write(model, folder, safe):
    folder.mkdir()
    state = {name: tensor.clone().contiguous() for name, tensor in model.state_dict().items()}
    if safe:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        torch.save(state, folder / "pytorch_model.bin")
    fix_valuehead_checkpoint(model, str(folder), safe)


def inputs_of(golden):
    rows = load_file(golden / "hf/preference/golden.safetensors")
    texts = [(row[mask.bool()] % 512).tolist() + [END] for row, mask in zip(rows["input_ids"], rows["attention_mask"])]
    longest = max(map(len, texts))
    ids = torch.tensor([text + [END] * (longest - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
    return texts, {"input_ids": ids, "attention_mask": mask}


def numbers_of(model, inputs):
    with torch.no_grad():
        values = model.eval()(**inputs, use_cache=False)[2]
    scores = values.gather(-1, inputs["attention_mask"].sum(-1, keepdim=True) - 1).squeeze(-1).tolist()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    losses = []
    for _ in range(STEPS):
        loss = PairwiseTrainer.compute_loss(None, model.train(), inputs)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {"bias": model.v_head.summary.bias.item(), "scores": scores, "losses": losses}


golden, here = pathlib.Path(sys.argv[1]), pathlib.Path(__file__).parent
texts, inputs = inputs_of(golden)
result = {"texts": texts, "end": END, "rate": RATE}
for name, adapter, seed, bias in (("full", False, 3, 0.75), ("adapter", True, 4, -1.5)):
    model = model_of(golden, adapter, seed, bias)
    with tempfile.TemporaryDirectory() as temporary:
        write(model, pathlib.Path(temporary) / "out", True)
        to = here / name
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir()
        kept = ["value_head.safetensors"] + (["adapter_config.json", "adapter_model.safetensors"] if adapter else [])
        for file in kept:
            shutil.copy(pathlib.Path(temporary) / "out" / file, to / file)
        if not adapter:
            written, original = load_file(pathlib.Path(temporary) / "out/model.safetensors"), load_file(golden / "hf/llama/model.safetensors")
            assert written.keys() == original.keys() and all(torch.equal(written[key], original[key]) for key in written)
            to = here / "pickled"
            shutil.rmtree(to, ignore_errors=True)
            to.mkdir()
            torch.save({f"v_head.{key}": value for key, value in model.v_head.state_dict().items()}, to / "value_head.bin")
    result[name] = numbers_of(model, inputs) | {"bias": bias}
(here / "golden.json").write_text(json.dumps(result, indent=1) + "\n")
