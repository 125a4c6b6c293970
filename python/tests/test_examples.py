"""The programs of tutorial 15 and its notebook."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import MODEL, ROOT

FOLDER = ROOT / "examples" / "15-from-mcatrainer"


def python(*words):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *map(str, words)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_program_of_the_tutorial(tmp_path, ranks):
    out = python(FOLDER / "train.py", MODEL, tmp_path / "out", *([ranks] if ranks > 1 else []))
    steps, loss, tensors = re.search(r"(\d+) steps, loss ([\d.]+), (\d+) tensors", out).groups()
    assert int(steps) <= 60 and float(loss) < 0.2 and int(tensors) > 10
    assert (tmp_path / "out" / "model.safetensors").exists()


def cells_of(notebook):
    return ["".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_runs_cell_by_cell():
    """In order and in one namespace, as a kernel does it; without the packages of Jupyter."""
    script = pathlib.Path("cells.py")
    script.write_text(f"import json\nnames = {{'__name__': '__main__'}}\nfor cell in json.load(open('cells.json')):\n    exec(cell, names)\n")
    pathlib.Path("cells.json").write_text(json.dumps(cells_of(FOLDER / "stories.ipynb")))
    out = python(script)
    first, last = (float(each) for each in re.search(r"loss ([\d.]+) at step 4, ([\d.]+) at step 80", out).groups())
    assert last < first / 4, out
    assert re.search(r"Once upon a time there was a (fox|bear|cat|owl) named ", out), out


def test_the_notebook_runs_in_a_kernel():
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(FOLDER / "stories.ipynb", as_version=4)
    nbformat.validate(notebook)
    # The kernel finds the package where this process does.
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    texts = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("Once upon a time there was a" in text and " named " in text for text in texts[-1:]), texts
