"""Trainers, with the arguments of McaTrainer and of Hugging Face's Trainer."""

import os
import signal
import threading
from typing import NamedTuple

from . import callbacks as _callbacks
from . import objective as _objective
from . import ranks
from .arguments import TrainingArguments
from .columns import columns_of
from .core import _megalith
from .errors import ConfigError
from .model import AutoModel, Model


class TrainOutput(NamedTuple):
    """The result of train()."""

    global_step: int
    training_loss: float
    metrics: dict


class Trainer:
    """Trains a model: McaTrainer's loop, in every layout, with the progress, files and checkpoints of `megalith train`.

    model           what AutoModel.from_pretrained returned, or a folder or hub name to load
    args            the TrainingArguments that the model was loaded with
    train_dataset   anything with __len__ and __getitem__ that gives dicts of input_ids and labels, or, with args.max_steps,
                    anything that can be iterated; without it, the files that args.dataset names
    eval_dataset    the same for evaluations, with a length, or a dict of several by name
    data_collator   a function from a list of samples to a dict of tensors: input_ids and labels [rows, tokens], attention_mask
                    if rows have padding, and others for the loss. Without it rows are padded by the library
    labels_shifted  whether data_collator has moved labels to where they are predicted. False, Hugging Face's rule: they are
                    aligned with input_ids. McaTrainer's rule is True. Labels of samples are always aligned
    objective       a megalith.Objective, or a function (token_losses, batch) -> sum; without it, the model is trained to predict
                    its labels, or, with stage="dpo", to prefer answers
    callbacks       objects or classes with the methods of megalith.TrainerCallback
    processing_class, tokenizer   passed on to callbacks; the files of the model's own tokenizer are saved with it
    """

    default_labels_shifted = False

    def __init__(
        self,
        model,
        args=None,
        data_collator=None,
        train_dataset=None,
        eval_dataset=None,
        processing_class=None,
        tokenizer=None,
        callbacks=None,
        objective=None,
        labels_shifted=None,
    ):
        if args is None:
            args = model.args if isinstance(model, Model) else TrainingArguments()
        if not isinstance(model, Model):
            model = AutoModel.from_pretrained(model, args)
        if not model._core.fits(args._parsed):
            raise ConfigError("args differ from those that the model was loaded with; pass the same to both")
        self.model = model
        self.args = args
        self.processing_class = processing_class if processing_class is not None else tokenizer
        self._bridge = _callbacks.Bridge(callbacks or [], args, model, self.processing_class)
        shifted = self.default_labels_shifted if labels_shifted is None else labels_shifted
        eval_datasets = eval_dataset if isinstance(eval_dataset, dict) else {} if eval_dataset is None else {"": eval_dataset}
        if data_collator is None:  # which would get the items themselves
            train_dataset = columns_of(train_dataset, "train_dataset")
            eval_datasets = {name: columns_of(each, "eval_dataset") for name, each in eval_datasets.items()}
        self._core = _megalith.Trainer(
            model._core,
            train_dataset,
            eval_datasets,
            data_collator,
            shifted,
            None if objective is None else _objective.Bridge(objective),
            self._bridge,
        )
        if "on_init_end" in self._bridge.wanted:
            flags = {field: False for field in vars(_callbacks.TrainerControl())}
            self._bridge.event("on_init_end", self._core.state(self._bridge.known_lines), flags, {}, "")

    @property
    def state(self):
        """How far the run is: a megalith.TrainerState."""
        self._bridge.state._take(self._core.state(self._bridge.known_lines))
        return self._bridge.state

    def train(self, resume_from_checkpoint=None):
        """Trains to the end of the run, and returns a TrainOutput.

        Ctrl-C and SIGTERM end the run after its step, with a checkpoint, and are then raised as usual (KeyboardInterrupt for
        Ctrl-C); a second one ends the process. A checkpoint to continue is named in the arguments, since the model is loaded from
        it.
        """
        wanted = "auto" if resume_from_checkpoint is True else resume_from_checkpoint
        if wanted and wanted != self.args.resume_from_checkpoint:
            raise ConfigError(
                f"resume_from_checkpoint is {wanted}, but the model was loaded without it; set it in TrainingArguments"
            )
        output = self._core.train(ranks.handles_signals())
        if output["interrupted"]:
            raise_interrupt(output["signal"])
        return TrainOutput(output["global_step"], output["training_loss"], output["metrics"])

    def evaluate(self, metric_key_prefix="eval"):
        """Evaluates on eval_dataset, and returns the metrics."""
        return self._core.evaluate(metric_key_prefix)

    def save_model(self, output_dir=None):
        """Writes the model, or its adapter, as a folder that transformers and peft open. All ranks call it."""
        folder = os.fspath(output_dir) if output_dir is not None else self.model._core.output_dir
        if not folder:
            raise ConfigError("save_model needs a folder: pass one, or set output_dir in TrainingArguments")
        self._core.save_model(folder)


def raise_interrupt(number):
    """Raises what has stopped a run: on this rank a signal, on another one 0. All ranks stop after the same step, so that they
    can leave together (see ranks.py)."""
    try:
        # Handlers are Python's again: SIGINT becomes KeyboardInterrupt here, SIGTERM ends the process.
        if number and threading.current_thread() is threading.main_thread():
            signal.raise_signal(number)
        raise KeyboardInterrupt("the run was asked to stop" if number else "the run was asked to stop on another rank")
    except KeyboardInterrupt as error:
        error.ends_in_order = True
        raise


class McaTrainer(Trainer):
    """A Trainer with McaTrainer's rule for collators: labels are already where they are predicted."""

    default_labels_shifted = True


class DpoTrainer(Trainer):
    """A Trainer for preferences: args.stage is "dpo", and samples have chosen_input_ids, chosen_labels, rejected_input_ids and
    rejected_labels."""

    default_labels_shifted = True

    def __init__(self, model, args=None, **kwargs):
        if args is None:
            args = model.args if isinstance(model, Model) else TrainingArguments(stage="dpo")
        if args.stage != "dpo":
            raise ConfigError(f"args.stage is {args.stage}; DpoTrainer needs TrainingArguments(stage=\"dpo\")")
        super().__init__(model, args, **kwargs)
