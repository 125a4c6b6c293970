"""The program `megalith`, which the package brings along, and the commands of it that answer questions. They run in a process of
their own: nothing of them stays in this one."""

import json
import os
import pathlib
import subprocess

from . import installed_torch


def program_path():
    """Returns the path of the program."""
    path = pathlib.Path(__file__).parent / "bin" / "megalith"
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; this installation of megalith has no program")
    return str(path)


def environment():
    """Returns the variables that the program is to be started with.

    It looks for torch beside this package; where torch is in another folder, as in an environment that uses the packages of a
    second one, they tell it. Raises ImportError for another version of torch.
    """
    installed_torch.check()
    libraries = installed_torch.library_folders()
    if len(libraries) == 1 and libraries[0].parent.parent == pathlib.Path(__file__).parent.parent:
        return dict(os.environ)
    paths = [*map(str, libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths)}


def _word(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return os.fspath(value) if hasattr(value, "__fspath__") else str(value)


def option_words(options):
    """Returns options as words of the command line. None and False leave a switch out."""
    words = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        if value is True:
            words.append(f"--{name}")
        elif isinstance(value, (list, tuple)):
            words += [f"--{name}", *map(_word, value)]
        else:
            words.append(f"--{name}={_word(value)}")
    return words


def run_program(*words):
    """Runs `megalith words…` and returns what it has written to stdout.

    Raises ConfigError for bad input (exit code 2) and Error for other failures, with the program's own words.
    """
    command = [program_path(), *map(_word, words)]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode == 0:
        return done.stdout
    from .errors import ConfigError, Error

    # Remarks come before the error.
    message = f"\n{done.stderr.strip()}".rpartition("\nmegalith: ")[2]
    raise (ConfigError if done.returncode == 2 else Error)(message or f"megalith ended with exit code {done.returncode}")


def plan(model_name_or_path, **options):
    """Returns the fastest layouts that fit, as `megalith plan --json` describes them: plan("Qwen/Qwen3-8B", gpus=64)."""
    return json.loads(run_program("plan", "--json", f"--model_name_or_path={os.fspath(model_name_or_path)}", *option_words(options)))


def preview(topic, **options):
    """Returns what `megalith preview TOPIC --json` says about a run: groups, layers, batch, lr, pipeline or memory."""
    return json.loads(run_program("preview", topic, "--json", *option_words(options)))


def convert(checkpoint_path, output_path, **options):
    """Converts a model or a checkpoint, as `megalith convert` does, and returns a description of the result."""
    paths = (f"--checkpoint_path={os.fspath(checkpoint_path)}", f"--output_path={os.fspath(output_path)}")
    return json.loads(run_program("convert", "--json", *paths, *option_words(options)))
