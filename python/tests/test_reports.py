"""Hugging Face's own callbacks: they write what they write in their Trainer."""

import json
import os
import time

import megalith
import pytest
from conftest import options, run_script

transformers = pytest.importorskip("transformers")


def run(model_folder, samples, folder, callbacks=(), **more):
    args = megalith.TrainingArguments(**options(output_dir=str(folder), run_name="a-run", overwrite_output_dir=True, **more))
    trainer = megalith.Trainer(model_folder, args, train_dataset=samples, eval_dataset=samples[:2], callbacks=list(callbacks))
    trainer.train()
    return trainer


def events_of(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return events


def test_tensorboard(tmp_path, model_folder, samples, monkeypatch):
    pytest.importorskip("tensorboard")
    from transformers.integrations import TensorBoardCallback

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    trainer = run(model_folder, samples, tmp_path / "out", [TensorBoardCallback])
    trainer.evaluate()
    events = events_of(tmp_path / "board")
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert [each.step for each in events.Scalars("train/loss")] == [1, 2, 3, 4]
    assert [each.value for each in events.Scalars("train/loss")] == pytest.approx(losses, rel=1e-6)
    assert events.Scalars("eval/loss")[0].value > 0
    texts = events.Tensors("args/text_summary")[0].tensor_proto.string_val[0].decode()
    assert json.loads(texts)["run_name"] == "a-run"
    assert "LlamaForCausalLM" in events.Tensors("model_config/text_summary")[0].tensor_proto.string_val[0].decode()


def test_wandb_offline(tmp_path, model_folder, samples, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    trainer = run(model_folder, samples, tmp_path / "out", report_to=["wandb"])
    assert trainer.args.services == ["wandb"]
    import wandb

    assert wandb.run.name == "a-run" and wandb.run.summary["train/global_step"] == 4
    assert wandb.run.config["learning_rate"] == 3e-3 and wandb.run.config["model_type"] == "llama"
    assert wandb.run.config["model/num_parameters"] == trainer.model.num_parameters()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert wandb.run.summary["train/loss"] == pytest.approx(losses[-1])
    wandb.finish()
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 30  # a process of wandb writes it
    while file.stat().st_size < 1000 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert b"train/loss" in file.read_bytes()


def test_mlflow(tmp_path, model_folder, samples, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_FLATTEN_PARAMS", "TRUE")
    try:
        mlflow.set_tracking_uri(os.environ["MLFLOW_TRACKING_URI"])
        mlflow.search_experiments()
    except Exception:
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        mlflow.set_tracking_uri(f"file://{tmp_path}/mlruns")
    trainer = run(model_folder, samples, tmp_path / "out", report_to="mlflow")
    mlflow.flush_async_logging() if hasattr(mlflow, "flush_async_logging") else None
    (found,) = mlflow.search_runs(output_format="list")
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    history = mlflow.MlflowClient().get_metric_history(found.info.run_id, "loss")
    assert [each.value for each in sorted(history, key=lambda each: each.step)] == pytest.approx(losses)
    assert found.data.params["learning_rate"] == "0.003" and found.info.run_name == "a-run"


def test_one_rank_reports(tmp_path):
    script = """
        import megalith, os
        from transformers.integrations import TensorBoardCallback

        args = megalith.TrainingArguments(**options(output_dir=os.environ["OUT"], tp=2))
        megalith.Trainer(str(MODEL), args, train_dataset=counting_samples(), callbacks=[TensorBoardCallback()]).train()
    """
    pytest.importorskip("tensorboard")
    board = tmp_path / "board"
    run_script(script, ranks=2, env={"OUT": str(tmp_path / "out"), "TENSORBOARD_LOGGING_DIR": str(board)})
    assert len(list(board.glob("events*"))) == 1
    assert [each.step for each in events_of(board).Scalars("train/loss")] == [1, 2, 3, 4]


def test_services_of_nobody_stay_with_the_library():
    args = megalith.TrainingArguments(report_to=["tensorboard", "mlflow"])
    assert args.services == ["mlflow"] and args.report_to == ["tensorboard"]
    assert megalith.TrainingArguments(report_to="tensorboard").services == []
    assert megalith.TrainingArguments().services == []


def test_a_service_that_is_not_installed_is_named(model_folder, samples):
    if transformers.integrations.is_clearml_available():
        pytest.skip("clearml is installed")
    args = megalith.TrainingArguments(**options(report_to="clearml"))
    with pytest.raises(RuntimeError, match="clearml"):
        megalith.Trainer(model_folder, args, train_dataset=samples)
