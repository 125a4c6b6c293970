#!/usr/bin/env python3
"""make.py GOLDEN: writes answers.json, losses of whole answers as trl's own trainers compute them.

GOLDEN is tests/data/golden. The data is that of hf/preference: rows 0 to 3 of its golden.safetensors are chosen answers,
rows 4 to 7 the rejected ones of the same prompts; policy llama, reference preference/ref. Nothing is computed here:
DPOTrainer and KTOTrainer train for five steps of torch.optim.AdamW on all of it at once (CPU, fp32, eager attention), and
the script writes down their losses, gradient norms and metrics.

Made with trl 1.16.0, transformers 5.22.2, torch 2.11.0:  python3 tests/data/golden/trl/make.py tests/data/golden
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
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer
from trl.trainer.kto_config import KTOConfig
from trl.trainer.kto_trainer import KTOTrainer

STEPS, RATE, CLIP = 5, 1e-4, 1.0
VERDICTS = [True, False, True, True, False, False, True, False]  # of rows 0, 4, 1, 5, 2, 6, 3, 7
LOSSES = {
    "sigmoid": {},
    "robust": {"label_smoothing": 0.1},
    "hinge": {},
    "ipo": {},
    "exo_pair": {"label_smoothing": 0.1},
    "nca_pair": {},
    "bco_pair": {},
    "sppo_hard": {"beta": 0.5},
    "aot": {"label_smoothing": 0.1},
    "aot_unpaired": {"label_smoothing": 0.1},
    "apo_zero": {},
    "apo_down": {},
    "discopop": {"discopop_tau": 0.5},
    "sigmoid_norm": {"beta": 2.0},
    "sigmoid ld_alpha": {"ld_alpha": 0.4},
}


def recorded(trainer_class):
    """Takes data that has been tokenized, and keeps the loss of every micro-batch, which the log rounds."""
    class Recorded(trainer_class):
        def _prepare_dataset(self, dataset, *args, **kwargs):
            return dataset

        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            self.heard.append(loss.item())
            return loss
    return Recorded


def options(folder, **more):
    return dict(output_dir=folder, max_steps=STEPS, learning_rate=RATE, lr_scheduler_type="constant", weight_decay=0.0,
                adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8, max_grad_norm=CLIP, logging_steps=1, report_to=[],
                save_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
                max_length=None, **more)


def model_of(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def trained(trainer_class, config, data, golden):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({str(i): i for i in range(512)}, "0")),
                                        pad_token="0", eos_token="2")
    trainer = recorded(trainer_class)(
        model=model_of(golden / "hf/llama"), ref_model=model_of(golden / "hf/preference/ref"), args=config,
        train_dataset=data, eval_dataset=data, processing_class=tokenizer)
    trainer.heard = []
    trainer.train()
    log = [line for line in trainer.state.log_history if "grad_norm" in line]
    result = {"losses": list(trainer.heard), "grad_norms": [line["grad_norm"] for line in log]}
    trainer.heard.clear()
    trainer.evaluate()
    result["losses"].append(trainer.heard[0])
    for key in ("rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "logps/rejected", "kl"):
        if key in log[0]:
            result[key] = [line[key] for line in log]
    return result


def main():
    golden = Path(sys.argv[1])
    tensors = load_file(golden / "hf/preference/golden.safetensors")
    rows = []
    for ids, mask, labels in zip(tensors["input_ids"], tensors["attention_mask"], tensors["labels"]):
        length = int(mask.sum())
        prompt = int((labels[:length] == -100).sum())
        assert (labels[:prompt] == -100).all() and (labels[prompt:length] == ids[prompt:length]).all()
        rows.append((ids[:prompt].tolist(), ids[prompt:length].tolist()))
    pairs = len(rows) // 2
    result = {"versions": {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__},
              "optimizer": {"steps": STEPS, "lr": RATE, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0,
                            "clip": CLIP}, "dpo": {}, "kto": {}}
    with tempfile.TemporaryDirectory() as folder:
        data = Dataset.from_list([{"prompt_ids": rows[i][0], "chosen_ids": rows[i][1], "rejected_ids": rows[pairs + i][1]}
                                  for i in range(pairs)])
        for name, how in LOSSES.items():
            config = DPOConfig(**options(folder, loss_type=[name.split()[0]], per_device_train_batch_size=pairs,
                                         per_device_eval_batch_size=pairs, **how))
            result["dpo"][name] = {"options": how, **trained(DPOTrainer, config, data, golden)}
        order = [row for i in range(pairs) for row in (i, pairs + i)]
        answers = [rows[row][1] for row in order]
        verdicts = {"both": VERDICTS, "desirable alone": [True] * len(order), "undesirable alone": [False] * len(order)}
        result["kto_rows"] = order
        for name, labels in verdicts.items():
            how = {"beta": 0.3, "desirable_weight": 0.7, "undesirable_weight": 1.3}
            # The mismatched answers are those of KTOTrainer._prepare_dataset: of the batch, moved by one.
            data = Dataset.from_list([
                {"prompt_ids": rows[row][0], "completion_ids": answers[i], "KL_completion_ids": answers[i - 1],
                 "label": labels[i]} for i, row in enumerate(order)])
            config = KTOConfig(**options(folder, per_device_train_batch_size=len(order),
                                         per_device_eval_batch_size=len(order), train_sampling_strategy="sequential",
                                         **how))
            result["kto"][name] = {"options": how, "verdicts": labels, **trained(KTOTrainer, config, data, golden)}
    (golden / "trl/answers.json").write_text(json.dumps(result, indent=1) + "\n")


main()
