"""Loads the compiled part, once it is certain that it fits the torch of this environment."""

import importlib.metadata

from ._version import torch_version, version


def _found_torch():
    """Returns the version of the installed torch without a suffix such as +cpu, or None. Does not import it."""
    try:
        return importlib.metadata.version("torch").split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


_found = _found_torch()
if _found is None:
    raise ImportError(f"megalith {version} needs torch {torch_version}, and there is no torch: pip install torch=={torch_version}")
if _found != torch_version:
    raise ImportError(
        f"megalith {version} was built for torch {torch_version}, and torch {_found} is installed; its C++ interface is another"
        f" one in every version. Run: pip install torch=={torch_version} (or install a megalith that was built for {_found})"
    )

import torch  # noqa: E402, F401  its libraries are those that the compiled part is linked to

from . import _megalith  # noqa: E402, F401
