"""Loads the compiled part, once it is certain that it fits the torch of this environment."""

from . import installed_torch

installed_torch.check()

import torch  # noqa: E402, F401  its libraries are those that the compiled part is linked to

from . import _megalith  # noqa: E402, F401
