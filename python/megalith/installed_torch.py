"""The torch of this environment, which brings the libraries that program and library are linked to. Nothing here imports it."""

import importlib.metadata
import importlib.util
import pathlib
import re

from ._version import cuda_version, torch_version, version


def check():
    """Raises ImportError unless torch is installed in the version that this package was built for, with the same CUDA if this one
    has any."""
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
    if cuda_version and (cuda := _cuda_of_torch()) != cuda_version:
        has = f"was built for CUDA {cuda}" if cuda else "has no CUDA part"
        raise ImportError(
            f"megalith {version} was built for CUDA {cuda_version}, and the torch that is installed {has}. Install torch"
            f" {torch_version} with CUDA {cuda_version} (pytorch.org says from where), or a megalith without CUDA"
        )


def _cuda_of_torch():
    """Returns the major version of CUDA that torch was built with; None without one."""
    text = (library_folder().parent / "version.py").read_text(encoding="utf-8")
    found = re.search(r"^cuda\b.*=\s*['\"](\d+)", text, re.MULTILINE)
    return found and found.group(1)


def library_folder():
    """Returns the folder of torch's libraries."""
    spec = importlib.util.find_spec("torch")
    return pathlib.Path(spec.submodule_search_locations[0]) / "lib"


def library_folders():
    """Returns the folders of torch's libraries and, with CUDA, of NVIDIA's, which pip installs beside torch."""
    torch = library_folder()
    return [torch, *(sorted(torch.parent.parent.glob("nvidia/*/lib")) if cuda_version else [])]
