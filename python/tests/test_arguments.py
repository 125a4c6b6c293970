"""TrainingArguments: every option of the table, and the program's own words about mistakes."""

import enum
import pathlib
import re

import megalith
import pytest
from conftest import ROOT


def stub_names():
    """The names that the stub promises to editors."""
    text = (ROOT / "python" / "megalith" / "arguments.pyi").read_text()
    return re.findall(r"^        (\w+): .* = \.\.\.,$", text, re.MULTILINE)


def test_every_name_of_the_stub_is_an_option():
    names = stub_names()
    assert len(names) > 800 and "tensor_model_parallel_size" in names and "tp" in names
    args = megalith.TrainingArguments()
    for name in names:
        getattr(args, name)  # raises for what is no option


def test_the_stub_is_installed_with_the_package():
    installed = pathlib.Path(megalith.__file__).parent / "arguments.pyi"
    assert installed.read_text() == (ROOT / "python" / "megalith" / "arguments.pyi").read_text()


def test_values_of_every_type():
    class Strategy(enum.Enum):
        STEPS = "steps"

    args = megalith.TrainingArguments(
        tensor_model_parallel_size=2,
        bf16=True,
        learning_rate=1e-5,
        dataset=["a", "b"],
        lr_scheduler_kwargs={"min_lr": 1e-6},
        output_dir=pathlib.Path("out"),
        save_strategy=Strategy.STEPS,
        template=None,
        run_name="null",
    )
    assert args.tp == args.tensor_model_parallel_size == 2
    assert args.bf16 is True and args.learning_rate == 1e-5
    assert args.dataset == ["a", "b"] and args.lr_scheduler_kwargs == {"min_lr": 1e-6}
    assert args.output_dir == "out" and args.save_strategy == "steps"
    assert args.template is None and args.run_name == "null"
    assert args.finetuning_type == "full" and args.weight_decay == 0.0
    assert args.to_dict()["bf16"] is True


def test_all_mistakes_at_once_in_the_words_of_the_program():
    with pytest.raises(megalith.ConfigError) as caught:
        megalith.TrainingArguments(lerning_rate=1e-3, seed="soon", bf16=object())
    message = str(caught.value)
    assert "bf16 is a object" in message
    with pytest.raises(ValueError) as caught:
        megalith.TrainingArguments(lerning_rate=1e-3, seed="soon")
    message = str(caught.value)
    assert "unknown option lerning_rate; did you mean learning_rate?" in message
    assert 'seed is "soon"; expected a whole number' in message
    assert isinstance(caught.value, megalith.Error)


def test_setting_an_option_checks_it():
    args = megalith.TrainingArguments(tp=2)
    args.tensor_model_parallel_size = 4
    assert args.tp == 4 and args.given()["tensor_model_parallel_size"] == 4 and "tp" not in args.given()
    with pytest.raises(megalith.ConfigError):
        args.tp = "many"
    assert args.tp == 4
    with pytest.raises(megalith.ConfigError, match="did you mean"):
        args.lerning_rate = 1
    with pytest.raises(AttributeError):
        args.lerning_rate


def test_a_file_of_options(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("tp: 4\nseed: 9\n")
    args = megalith.TrainingArguments.from_file(file, seed=3)
    assert args.tp == 4 and args.seed == 3
    assert args.finetuning_type == "lora", "a file means the same as for the program"
    again = tmp_path / "again.yaml"
    again.write_text(args.to_yaml())
    assert megalith.TrainingArguments.from_file(again) == args


def test_errors_are_pythons_too():
    assert issubclass(megalith.ConfigError, ValueError) and issubclass(megalith.DataError, ValueError)
    assert issubclass(megalith.CommError, RuntimeError) and issubclass(megalith.InternalError, RuntimeError)
    for kind in (megalith.ConfigError, megalith.DataError, megalith.CommError, megalith.InternalError):
        assert issubclass(kind, megalith.Error)
