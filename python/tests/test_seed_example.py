"""Programs written for mcore_adapter: the name of the package changes, and nothing else."""

import textwrap

import megalith
import pytest
import torch
from conftest import MODEL, counting_samples, options, run_script

# The usage example of McaTrainer, as it is documented there.
EXAMPLE = """
from mcore_adapter.models import AutoModel
from mcore_adapter.trainer import McaTrainer
from mcore_adapter.training_args import Seq2SeqTrainingArguments
# Create training arguments
args = Seq2SeqTrainingArguments(
output_dir="/path/to/output",
tensor_model_parallel_size=2,
pipeline_model_parallel_size=2,
use_distributed_optimizer=True,
overlap_grad_reduce=True,
bf16=True,
per_device_train_batch_size=4,
gradient_accumulation_steps=2,
num_train_epochs=3,
sequence_packing=True,
)
# Load model
model = AutoModel.from_pretrained("Qwen/Qwen2.5-7B", args)
# Create trainer
trainer = McaTrainer(
model=model,
args=args,
tokenizer=tokenizer,
data_collator=data_collator,
train_dataset=train_dataset,
)
# Train
trainer.train()
# Save model
trainer.save_model()
"""

# What the example leaves to its reader: a tokenizer, a dataset, and a collator as ROLL's, with labels that are moved already
# and several samples in a row.
AROUND = """
import os

def data_collator(items):
    import torch
    rows = []
    for start in range(0, len(items), 2):
        ids, labels, mask = [], [], []
        for number, item in enumerate(items[start : start + 2], 1):
            ids += item["input_ids"]
            labels += item["labels"][1:] + [-100]
            mask += [number] * len(item["input_ids"])
        rows.append((ids, labels, mask))
    return {name: torch.tensor([row[i] for row in rows]) for i, name in enumerate(("input_ids", "labels", "attention_mask"))}

tokenizer = None
train_dataset = counting_samples(32)
"""


def test_the_example_line_by_line(tmp_path):
    program = EXAMPLE.replace("mcore_adapter", "megalith")
    # Places of this machine, which has no GPU and no hub.
    program = program.replace("/path/to/output", str(tmp_path / "out")).replace("Qwen/Qwen2.5-7B", str(MODEL))
    program = program.replace("bf16=True,\n", "bf16=True,\nuse_cpu=True,\n")
    run_script(textwrap.dedent(AROUND) + program, ranks=4, env={"OMP_NUM_THREADS": "1"})
    assert (tmp_path / "out" / "config.json").exists() and (tmp_path / "out" / "model.safetensors").exists()
    loaded = megalith.AutoModel.from_pretrained(str(tmp_path / "out"), megalith.TrainingArguments(**options()))
    assert loaded.family == "llama"


def test_modules_have_the_names_of_mcore_adapter():
    from megalith.initialize import initialize_megatron, is_distribute_initialized
    from megalith.models import AutoModel
    from megalith.trainer import DpoTrainer, McaTrainer
    from megalith.training_args import Seq2SeqTrainingArguments, TrainingArguments

    assert (AutoModel, McaTrainer, DpoTrainer) == (megalith.AutoModel, megalith.McaTrainer, megalith.DpoTrainer)
    assert Seq2SeqTrainingArguments is TrainingArguments is megalith.TrainingArguments
    assert initialize_megatron is megalith.initialize_megatron
    assert is_distribute_initialized is megalith.is_distribute_initialized


def test_a_collator_with_an_extra_key(model_folder):
    """As ROLL's: items carry what is not a number, the collator makes tensors of it, and the loss reads them."""
    samples = [{**sample, "reward": "good" if i % 2 else "bad"} for i, sample in enumerate(counting_samples(16))]

    class DataCollatorWithRewards:
        def __call__(self, items):
            labels = torch.tensor([item["labels"][1:] + [-100] for item in items])
            advantage = torch.tensor([1.0 if item["reward"] == "good" else 0.0 for item in items])
            return {
                "input_ids": torch.tensor([item["input_ids"] for item in items]),
                "labels": labels,
                "attention_mask": torch.ones_like(labels),
                "advantages": advantage[:, None].expand(labels.shape).contiguous(),
                "texts": [item["reward"] for item in items],  # stays with Python
            }

    class Policy(megalith.Objective):
        extra_keys = ("advantages",)
        metrics_keys = ("advantage",)

        def loss(self, token_losses, batch):
            advantages = batch.extras["advantages"]
            assert advantages.shape == token_losses.shape
            counted = batch.labels != -100
            return {
                "loss": (token_losses * advantages).sum(),
                "metrics": {"advantage": (advantages[counted].sum(), int(counted.sum()))},
            }

    args = megalith.TrainingArguments(**options(max_steps=30, num_train_epochs=30))
    model = megalith.AutoModel.from_pretrained(model_folder, args)
    trainer = megalith.McaTrainer(
        model=model, args=args, data_collator=DataCollatorWithRewards(), train_dataset=samples, objective=Policy()
    )
    trainer.train()
    lines = [line for line in trainer.state.log_history if "advantage" in line]
    assert [line["advantage"] for line in lines] == pytest.approx([0.5] * len(lines))
    assert lines[-1]["loss"] < lines[0]["loss"] / 2
