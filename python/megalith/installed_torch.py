"""The torch of this environment, which brings the libraries that program and library are linked to. Nothing here imports it."""

import importlib.metadata
import importlib.util
import pathlib

from ._version import torch_version, version


def check():
    """Raises ImportError unless torch is installed in the version that this package was built for."""
    try:
        # Without a suffix such as +cpu: the interface is the same.
        found = importlib.metadata.version("torch").split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(
            f"megalith {version} needs torch {torch_version}, and there is no torch: pip install torch=={torch_version}"
        ) from None
    if found != torch_version:
        raise ImportError(
            f"megalith {version} was built for torch {torch_version}, and torch {found} is installed; its C++ interface is another"
            f" one in every version. Run: pip install torch=={torch_version} (or install a megalith that was built for {found})"
        )


def library_folder():
    """Returns the folder of torch's libraries."""
    spec = importlib.util.find_spec("torch")
    return pathlib.Path(spec.submodule_search_locations[0]) / "lib"
