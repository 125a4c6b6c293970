"""Models: a folder or a hub name, loaded in the layout of the arguments, and weights in memory."""

import json
import os
import pathlib
from typing import NamedTuple

import torch

from . import ranks
from .core import _megalith
from .errors import ConfigError


class Shard(NamedTuple):
    """What this rank holds of a tensor; see Model.state_dict."""

    shape: tuple  # of the whole tensor
    offset: tuple  # of the first element held here, in each dimension
    tensor: torch.Tensor  # shares the model's memory where that is possible
    replica: int  # ranks that hold the same are numbered from 0


class MissingAndUnexpected(NamedTuple):
    """The result of Model.load_state_dict, as PyTorch's modules return it."""

    missing_keys: list
    unexpected_keys: list


class ModelConfig(dict):
    """The config.json of a model's folder; values are attributes, too."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"config.json has no {name}") from None

    def to_dict(self):
        """Returns a copy as a plain dict."""
        return dict(self)

    def to_json_string(self):
        """Returns the text of the file."""
        return json.dumps(self, indent=2) + "\n"


class Model:
    """What this rank holds of a model. Made by AutoModel."""

    def __init__(self, core, args):
        self._core = core
        self.args = args

    @property
    def folder(self):
        """The folder that the model was read from."""
        return self._core.folder

    @property
    def config(self):
        """The folder's config.json, which dashboards keep with the arguments."""
        return ModelConfig(json.loads((pathlib.Path(self.folder) / "config.json").read_text(encoding="utf-8")))

    @property
    def family(self):
        """The model type, such as "qwen3"."""
        return self._core.family

    def num_parameters(self):
        """Returns the number of parameters of the whole model, over all ranks."""
        return self._core.num_parameters()

    def save_pretrained(self, folder):
        """Writes a folder that transformers, vLLM and others open. All ranks call it."""
        self._core.save(os.fspath(folder))

    def weights(self, dtype=None, device=None, of="model", rank=None, batch_bytes=256 << 20):
        """Yields (name, tensor) for every tensor of the model, whole, under the names of Hugging Face's files: for an engine or a
        model in this process that is to get the weights of the moment.

        All ranks call it and go through it together, to the end; every rank gets every tensor, a copy that is its own. Tensors are
        gathered a batch of `batch_bytes` at a time, so the whole model is never needed at once.

        dtype   the type of the tensors, such as torch.bfloat16; without it that of the model's files
        device  where the tensors are to be; without it the device of the run
        of      "model", with an adapter merged in; "base", without it; "adapter", its own tensors under peft's names
        rank    the only rank that gets tensors; the others get None in their place. Without it all do
        """
        for batch in self._core.stream(of, dtype, rank, batch_bytes):
            for name, tensor in batch:
                yield name, tensor if device is None or tensor is None else tensor.to(device)

    def state_dict(self, sharded=False, dtype=None, device=None, of="model", rank=None):
        """Returns the weights under the names of Hugging Face's files, as transformers loads them. All ranks call it.

        On every rank, or on `rank` alone (the others get an empty dict), all tensors, whole: see weights(). `sharded` returns what
        this rank holds, without communication: {name: [Shard, …]}; load_state_dict takes that back in the same layout.
        """
        if not sharded:
            found = self.weights(dtype=dtype, device=device, of=of, rank=rank)
            return {name: tensor for name, tensor in found if tensor is not None}
        if (dtype, device, rank) != (None, None, None):
            raise ConfigError("dtype, device and rank are for whole tensors; a sharded state_dict has what this rank holds")
        shards = {}
        for name, *shard in self._core.shards(of):
            shards.setdefault(name, []).append(Shard(*shard))
        return shards

    def load_state_dict(self, state_dict, strict=True, of="model"):
        """Fills the model with tensors under the names of Hugging Face's files, and returns the names that are missing and those
        that are unexpected, which `strict` refuses. All ranks call it.

        of  "model" or "base", which is the model below an adapter if it has one; "adapter", its own tensors under peft's names,
            as state_dict(of="adapter") returns them

        Values are whole tensors, the same on all ranks, or lists of Shards of which each rank has those that it needs. Each rank
        copies its own part. The optimizer of a run continues from the new weights; its moments stay.
        """
        given = []
        for name, value in state_dict.items():
            if isinstance(value, torch.Tensor):
                given.append((name, tuple(value.shape), [((0,) * value.dim(), value)]))
            else:
                given.append((name, value[0].shape, [(shard.offset, shard.tensor) for shard in value]))
        return MissingAndUnexpected(*self._core.set_weights(given, strict, of))

    def __repr__(self):
        return f"<megalith model {self.family}, {self.num_parameters():,} parameters, from {self.folder}>"


class AutoModel:
    """Loads models."""

    @staticmethod
    def from_pretrained(path_or_name, args):
        """Loads a model as the arguments split it: every rank reads only its part.

        Everything that the arguments and the files tell is checked first, and every problem is reported at once. Joins the other
        ranks (initialize_megatron). If the arguments continue a run (resume_from_checkpoint, or an output_dir with checkpoints),
        the weights are those of its checkpoint.
        """
        named = args.model_name_or_path
        path_or_name = os.fspath(path_or_name)
        if named is not None and named != path_or_name:
            raise ConfigError(f"the model is {path_or_name}, and args.model_name_or_path is {named}; leave one of them out")
        return Model(_megalith.Model(ranks.current(), args._parsed, path_or_name), args)
