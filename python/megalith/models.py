"""AutoModel under the module name of mcore_adapter: a program written for it changes the name of the package and nothing else."""

from .model import AutoModel, Model  # noqa: F401
