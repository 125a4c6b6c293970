"""The package itself: its program, its tokenizer, and how it is imported."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import megalith
import pytest
from conftest import MODEL, ROOT, run_script


def python(*words, **env):
    return subprocess.run(
        [sys.executable, *words], env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_the_program_runs_through_python():
    version = (ROOT / "VERSION").read_text().split()[0]
    done = python("-m", "megalith", "--version")
    assert done.returncode == 0 and done.stdout.strip() == f"megalith {version}", done.stderr
    assert python("-m", "megalith", "nonsense").returncode == 2
    assert megalith.__version__ == version


def test_the_program_is_on_the_path():
    program = pathlib.Path(sys.executable).parent / "megalith"
    if not program.exists():
        pytest.skip("the package was not installed by pip")
    done = subprocess.run([program, "preview", "groups", "--world-size", "4", "--tp", "2"], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0 and "tp" in done.stdout


def test_importing_takes_no_torch():
    done = python("-c", "import sys, megalith; print('torch' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


def test_importing_takes_little_time_beyond_torch():
    script = """
        import time, torch
        start = time.process_time()  # other processes do not count
        import megalith
        megalith.TrainingArguments, megalith.Trainer, megalith.AutoModel, megalith.Tokenizer
        print(time.process_time() - start)
    """
    best = min(float(run_script(script)[0]) for _ in range(3))
    assert best < 0.3


def test_another_torch_is_refused(tmp_path):
    folder = tmp_path / "megalith"
    shutil.copytree(pathlib.Path(megalith.__file__).parent, folder, ignore=shutil.ignore_patterns("bin", "lib"))
    (folder / "_version.py").write_text('version = "1.0"\ntorch_version = "1.2.3"\ncuda_version = None\n')
    done = python("-c", "from megalith import Trainer", PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert done.returncode == 1
    assert "ImportError: megalith 1.0 was built for torch 1.2.3, and torch 2." in done.stderr
    assert "pip install torch==1.2.3" in done.stderr
    (folder / "bin").mkdir()
    (folder / "bin" / "megalith").write_text("")
    done = python("-m", "megalith", "--version", PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert done.returncode == 2 and done.stderr.startswith("megalith: megalith 1.0 was built for torch 1.2.3, and torch 2.")


def test_another_cuda_is_refused(tmp_path):
    import torch

    folder = tmp_path / "megalith"
    shutil.copytree(pathlib.Path(megalith.__file__).parent, folder, ignore=shutil.ignore_patterns("bin", "lib"))
    same = torch.__version__.split("+")[0]
    (folder / "_version.py").write_text(f'version = "1.0"\ntorch_version = "{same}"\ncuda_version = "3"\n')
    done = python("-c", "from megalith import Trainer", PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert done.returncode == 1
    assert "megalith 1.0 was built for CUDA 3, and the torch that is installed " in done.stderr
    has = f"was built for CUDA {torch.version.cuda.split('.')[0]}" if torch.version.cuda else "has no CUDA part"
    assert has in done.stderr


def test_the_reference_page_is_what_the_docstrings_say():
    done = python(str(ROOT / "scripts" / "python_api.py"), "--check")
    assert done.returncode == 0, done.stderr


def test_preview_and_plan():
    groups = megalith.preview("groups", world_size=8, tp=2, pp=2)
    assert "tp" in json.dumps(groups)
    with pytest.raises(megalith.ConfigError, match="did you mean"):
        megalith.preview("groups", world_sze=8)
    layouts = megalith.plan(MODEL, gpus=8, gpu="h100-80g", global_batch_size=64)
    assert layouts


def test_convert(tmp_path):
    result = megalith.convert(MODEL, tmp_path / "half", bf16=True)
    assert result["tensors"] > 0 and (tmp_path / "half" / "config.json").exists()


def test_names_complete():
    assert "TrainingArguments" in dir(megalith) and "Trainer" in megalith.__all__
    for name in megalith.__all__:
        getattr(megalith, name)
    stub = (ROOT / "python" / "megalith" / "__init__.pyi").read_text()
    for name in megalith.__all__:
        assert f"import {name} as {name}" in stub
    with pytest.raises(AttributeError):
        megalith.trainer_of_something


@pytest.fixture
def text_model(tmp_path):
    """A folder with a tokenizer of 300 tokens and a chat template."""
    corpus = tmp_path / "corpus.jsonl"
    texts = (f"the king number {i} said what is it that we plough" for i in range(60))
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    folder = tmp_path / "tokenizer"
    megalith.run_program("data", "train-tokenizer", corpus, "--vocab_size=300", f"--output={folder}")
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant] {{ mood }}{% endif %}"
    )
    return folder


def test_the_tokenizer(text_model):
    tokenizer = megalith.Tokenizer.from_pretrained(text_model)
    text = "the king said: what?"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and len(ids) < len(text) and 256 < len(tokenizer) <= 300
    assert tokenizer([text, "we"])["input_ids"] == [ids, tokenizer.encode("we")]
    assert tokenizer(text)["attention_mask"] == [1] * len(ids)
    assert tokenizer.convert_tokens_to_ids(tokenizer.convert_ids_to_tokens(ids[0])) == ids[0]
    chat = [{"role": "user", "content": "who?"}]
    rendered = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False, mood="well")
    assert rendered == "[user] who?\n[assistant] well"
    assert tokenizer.apply_chat_template(chat, add_generation_prompt=True, mood="well") == tokenizer.encode(rendered, False)
    with pytest.raises(megalith.Error):
        megalith.Tokenizer(MODEL)
