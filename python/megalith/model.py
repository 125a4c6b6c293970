"""Models: a folder or a hub name, loaded in the layout of the arguments."""

import os

from . import ranks  # noqa: F401  leaves the groups at the end of the program
from .core import _megalith
from .errors import ConfigError


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
    def family(self):
        """The model type, such as "qwen3"."""
        return self._core.family

    def num_parameters(self):
        """Returns the number of parameters of the whole model, over all ranks."""
        return self._core.num_parameters()

    def save_pretrained(self, folder):
        """Writes a folder that transformers, vLLM and others open. All ranks call it."""
        self._core.save(os.fspath(folder))

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
        return Model(_megalith.Model(args._parsed, path_or_name), args)
