"""pretrain(), with Megatron-LM's providers and forward step."""

import argparse
import enum
import sys
from types import SimpleNamespace
from typing import NamedTuple

import torch

from . import callbacks as _callbacks
from . import program, ranks
from .core import _megalith
from .errors import ConfigError
from .trainer import raise_interrupt


class ModelType(enum.Enum):
    """Megatron's kinds of models. There is one kind here."""

    encoder_or_decoder = 1


class GPTModel:
    """Stands for the chunk of the model that the options describe; made by gpt_model."""


def gpt_model(pre_process=True, post_process=True, vp_stage=None):
    """Returns what a model_provider has to return: the library builds the chunk itself, from the options of the run."""
    return GPTModel()


class PretrainOutput(NamedTuple):
    """The result of pretrain()."""

    end: str  # "finished", "exit_interval", "stopped" or "skipped"
    global_step: int
    training_loss: float
    metrics: dict
    validation: dict
    test: dict


_args = None


def get_args():
    """Returns the options of the run, those of extra_args_provider among them, once pretrain() has read them."""
    if _args is None:
        raise ConfigError("there are no arguments before pretrain() has read them")
    return _args


def pretrain(
    train_valid_test_dataset_provider=None,
    model_provider=None,
    model_type=ModelType.encoder_or_decoder,
    forward_step_func=None,
    process_non_loss_data_func=None,
    extra_args_provider=None,
    args_defaults=None,
    get_embedding_ranks=None,
    get_position_embedding_ranks=None,
    non_loss_data_func=None,
    *,
    args=None,
    report_keys=(),
    extra_keys=(),
    perplexity=True,
    callbacks=(),
):
    """Pre-trains the model that options describe, as `megalith pretrain` does, with parts of one's own. All ranks call it.

    train_valid_test_dataset_provider(samples)  returns the three datasets, or None for one that is not there. `samples` are the
        numbers that the run needs. Items are dicts of tokens, labels (the token after each), loss_mask and further numbers for the
        loss; or of input_ids and labels aligned with them. Without it, the options name the data (data_path, mock_data)
    model_provider(pre_process, post_process)  returns megalith.gpt_model(): the options describe the model. May be left out
    forward_step_func(data_iterator, model)  returns the output of the model and a function of it: (loss, report), a mean, or
        (loss, tokens, report), a sum. next(data_iterator) has tokens, labels, loss_mask, position_ids and what extra_keys names;
        model(tokens, position_ids, attention_mask, labels=labels) gives the losses of the tokens, and logits without labels.
        Without it, the losses are summed
    extra_args_provider(parser)  adds options to an argparse parser; get_args() has them, and those of the library
    args_defaults  options that apply where the words do not give them
    args           words of the command line, or a dict of options; without it the words of the process
    report_keys    names in the reports of losses that the log is to have, besides the loss itself ("lm loss")
    extra_keys     further keys of items that forward_step_func reads
    perplexity     whether the loss is a mean of -log p
    callbacks      as for a Trainer
    """
    _refuse(process_non_loss_data_func=process_non_loss_data_func, non_loss_data_func=non_loss_data_func)
    _refuse(get_embedding_ranks=get_embedding_ranks, get_position_embedding_ranks=get_position_embedding_ranks)
    if getattr(model_type, "name", "encoder_or_decoder") != "encoder_or_decoder":
        raise ConfigError(f"model_type is {model_type}; there are only models with one stack of layers (encoder_or_decoder)")
    words, own = _words(args, extra_args_provider, args_defaults or {})
    core = _megalith.PretrainRun(ranks.current(), words, train_valid_test_dataset_provider is not None)
    global _args
    _args = SimpleNamespace(**{**core.options, **vars(own)})
    bridge = Bridge(train_valid_test_dataset_provider, model_provider, forward_step_func)
    bridge.report_keys, bridge.extra_keys, bridge.perplexity = list(report_keys), list(extra_keys), perplexity
    bridge.callbacks = _callbacks.Bridge(callbacks, _args, None, None)
    output = core.pretrain(bridge, ranks.handles_signals())
    if output.pop("interrupted"):
        raise_interrupt(output["signal"])
    del output["signal"]
    return PretrainOutput(**output)


def _refuse(**functions):
    for name, function in functions.items():
        if function is not None:
            raise ConfigError(f"{name} cannot be given from Python; a program in C++ can (docs/tutorials/11-own-loss.md)")


def _words(args, extra_args_provider, defaults):
    """Returns the words for the library, and the namespace of the program's own options."""
    words = program.option_words(args) if isinstance(args, dict) else list(sys.argv[1:] if args is None else args)
    own = SimpleNamespace()
    if extra_args_provider is not None:
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        own, words = (extra_args_provider(parser) or parser).parse_known_args(words)
    given = {_megalith.canonical_name(word.lstrip("-").partition("=")[0]) for word in words}
    missing = {name: value for name, value in defaults.items() if (_megalith.canonical_name(name) or name) not in given}
    return words + program.option_words(missing), own


class Bridge:
    """What the library calls during pretrain()."""

    def __init__(self, datasets, model_provider, forward_step):
        self.datasets = datasets
        self.forward_step = forward_step
        self._model_provider = model_provider
        self.check_model = None if model_provider is None else self._check_model

    def _check_model(self, pre_process, post_process, vp_stage):
        more = {} if vp_stage is None else {"vp_stage": vp_stage}
        made = self._model_provider(pre_process=pre_process, post_process=post_process, **more)
        if not isinstance(made, GPTModel):
            raise ConfigError(
                f"model_provider has returned a {type(made).__name__}; the library runs its own models, so it must return"
                " megalith.gpt_model(pre_process, post_process), whose shape the options describe"
            )

    def step(self, core):
        chunk = _Chunk(core)
        result = self.forward_step(_once(core), chunk)
        if not isinstance(result, tuple) or len(result) != 2:
            raise ConfigError(f"forward_step_func has returned {result!r:.80}; it must return (output, loss function)")
        output, loss = result
        return output, (lambda tensor: self._loss(loss, tensor)) if core.post_process else None

    def _loss(self, loss, output):
        returned = loss(output)
        if not isinstance(returned, tuple) or len(returned) not in (2, 3):
            raise ConfigError(f"the loss function has returned {returned!r:.80}; it must return (loss, report) or (loss, tokens, report)")
        tokens = int(returned[1]) if len(returned) == 3 else None
        report = {}
        for name, value in returned[-1].items():
            if name == "lm loss":
                continue  # the library reports it
            if name not in self.report_keys:
                raise ConfigError(f'the loss function reports "{name}"; pass report_keys=["{name}"] to pretrain, on all ranks')
            report[name] = _sum_and_weight(value)
        return returned[0], tokens, report


def _sum_and_weight(value):
    """Megatron reports a value, or the two elements sum and number."""
    if isinstance(value, (tuple, list)) and len(value) == 2:
        value = torch.stack([torch.as_tensor(each, dtype=torch.float32).reshape(()) for each in value])
    value = torch.as_tensor(value, dtype=torch.float32).detach()
    return (value[0], float(value[1])) if value.numel() == 2 else (value.reshape(()), 1.0)


def _once(core):
    yield core.batch()


class _Chunk:
    """The chunk of the model during one forward step."""

    def __init__(self, core):
        self._core = core
        self.pre_process = core.pre_process
        self.post_process = core.post_process
        self.training = core.training

    def __call__(self, input_ids=None, position_ids=None, attention_mask=None, labels=None, **kwargs):
        """Runs the chunk on the micro-batch of this step; its tokens are those of the data iterator, whatever is passed."""
        return self._core.forward(labels is not None)
