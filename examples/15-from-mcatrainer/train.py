"""A program written for ROLL's McaTrainer, with the name of the package changed.

    python examples/15-from-mcatrainer/train.py MODEL OUTPUT [NPROC]

trains the model of a folder on counting, on NPROC processes (1), with a collator, a loss and a callback of its own.
"""

import sys

import megalith
import torch
from megalith.models import AutoModel
from megalith.trainer import McaTrainer
from megalith.training_args import Seq2SeqTrainingArguments


def make_samples(count=64, length=12):
    """Ids that count up from different places, and a reward that the loss is going to read."""
    samples = []
    for i in range(count):
        ids = [5 + (i + k) % 8 for k in range(length)]
        samples.append({"input_ids": ids, "labels": [-100, *ids[1:]], "reward": 1.0 if i % 4 else 0.25})
    return samples


def collate(items):
    """ROLL's form: labels are already where they are predicted, and a key more than the library knows."""
    labels = torch.tensor([item["labels"][1:] + [-100] for item in items])
    rewards = torch.tensor([item["reward"] for item in items])
    return {
        "input_ids": torch.tensor([item["input_ids"] for item in items]),
        "labels": labels,
        "attention_mask": torch.ones_like(labels),
        "rewards": rewards[:, None].expand(labels.shape).contiguous(),
    }


class Rewarded(megalith.Objective):
    extra_keys = ("rewards",)
    metrics_keys = ("plain_loss",)

    def loss(self, token_losses, batch):
        return {
            "loss": (token_losses * batch.extras["rewards"]).sum(),
            "metrics": {"plain_loss": (token_losses.detach().sum(), batch.loss_tokens)},
        }


class StopWhenGood(megalith.TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs.get("plain_loss", 9) < 0.05:
            control.should_training_stop = True


def train(model_path, output, nproc):
    args = Seq2SeqTrainingArguments(
        output_dir=output,
        overwrite_output_dir=True,
        tensor_model_parallel_size=nproc,
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=5e-3,
        max_steps=60,
        logging_steps=10,
        save_strategy="no",
        train_from_scratch=True,
        use_cpu=not torch.cuda.is_available(),
    )
    model = AutoModel.from_pretrained(model_path, args)
    trainer = McaTrainer(
        model=model,
        args=args,
        data_collator=collate,
        train_dataset=make_samples(),
        objective=Rewarded(),
        callbacks=[StopWhenGood],
    )
    result = trainer.train()
    trainer.save_model()
    weights = model.state_dict()  # on every rank, under the names of Hugging Face's files
    return result.global_step, trainer.state.log_history[-2]["plain_loss"], len(weights)


if __name__ == "__main__":
    model_path, output, *nproc = sys.argv[1:]
    results = megalith.launch(train, (model_path, output, int(*nproc or [1])), nproc=int(*nproc or [1]))
    steps, loss, tensors = results[0]
    print(f"{steps} steps, loss {loss:.4f}, {tensors} tensors")
