"""Datasets without a length, and those of Hugging Face."""

import megalith
import pytest
import torch
from conftest import counting_samples, options
from megalith.testing import run_ranks


def losses(model_folder, data, **more):
    parts = {name: more.pop(name) for name in ("data_collator", "objective", "callbacks") if name in more}
    args = megalith.TrainingArguments(**options(**more))
    trainer = megalith.Trainer(model_folder, args, train_dataset=data, **parts)
    trainer.train()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, samples):
        self.samples = samples
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        yield from self.samples


def pad(items):
    return {key: torch.tensor([item[key] for item in items]) for key in ("input_ids", "labels")}


@pytest.mark.parametrize("parts", [{}, {"data_collator": pad}], ids=["library", "collator"])
def test_a_stream_is_read_in_its_order(model_folder, samples, parts):
    numbered = losses(model_folder, samples, **parts)
    stream = Stream(samples)
    assert losses(model_folder, stream, **parts) == numbered
    assert stream.epochs[0] == 0


def test_epochs_of_a_stream_begin_again(model_folder):
    stream = Stream(counting_samples(8))
    assert len(losses(model_folder, stream, max_steps=5)) == 5  # two steps per epoch
    assert stream.epochs[:3] == [0, 1, 2]


def test_extra_keys_come_from_streams_too(model_folder, samples):
    class Weighted(megalith.Objective):
        extra_keys = ("weight",)

        def loss(self, token_losses, batch):
            return (token_losses * batch.extras["weight"]).sum()

    doubled = [{**sample, "weight": [2.0] * len(sample["input_ids"])} for sample in samples]
    plain = losses(model_folder, samples)
    assert losses(model_folder, Stream(doubled), objective=Weighted())[0] == pytest.approx(2 * plain[0])


@pytest.mark.parametrize("layout", [{}, {"tp": 2}, {"pp": 2}], ids=str)
def test_ranks_share_a_stream(model_folder, samples, layout):
    more = dict(per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=2, **layout)
    numbered = run_ranks(2, lambda: losses(model_folder, samples, **more))
    assert run_ranks(2, lambda: losses(model_folder, Stream(samples), **more)) == numbered


def test_a_run_continues_a_stream(tmp_path, model_folder):
    samples = counting_samples(32)

    class StopAtTwo(megalith.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 2

    def run(folder, callbacks=(), **more):
        saves = dict(output_dir=str(tmp_path / folder), save_strategy="steps", save_steps=2)
        return losses(model_folder, Stream(samples), callbacks=list(callbacks), **saves, **more)

    whole = run("whole")
    run("parts", [StopAtTwo()])
    assert run("parts", resume_from_checkpoint="auto") == whole


def test_streams_that_cannot_be_used_are_named(model_folder, samples):
    with pytest.raises(megalith.ConfigError, match="set max_steps"):
        losses(model_folder, Stream(samples), max_steps=-1, num_train_epochs=1)
    with pytest.raises(megalith.ConfigError, match="group_by_length needs the lengths"):
        losses(model_folder, Stream(samples), group_by_length=True, disable_shuffling=False)
    with pytest.raises(megalith.ConfigError, match="train_dataset is a generator, an iterator"):
        losses(model_folder, (each for each in samples))
    with pytest.raises(megalith.ConfigError, match="train_dataset is a int"):
        losses(model_folder, 3)
    with pytest.raises(megalith.ConfigError, match="eval_dataset is a Stream; it must have __len__"):
        args = megalith.TrainingArguments(**options())
        megalith.Trainer(model_folder, args, eval_dataset=Stream(samples))
    with pytest.raises(megalith.DataError, match='sample 1 of train_dataset has no "input_ids"'):
        losses(model_folder, Stream([samples[0], {"labels": [1]}] + samples))

    class Broken(Stream):
        def __iter__(self):
            yield from self.samples[:6]
            raise KeyError("the server is gone")

    with pytest.raises(KeyError, match="the server is gone"):
        losses(model_folder, Broken(samples))


# ---- datasets.Dataset ----


@pytest.fixture
def table(samples):
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_list(samples)


def test_columns_are_read_where_they_lie(tmp_path, model_folder, samples, table):
    from megalith.columns import columns_of

    datasets = pytest.importorskip("datasets")
    table.save_to_disk(str(tmp_path / "table"))
    mapped = datasets.load_from_disk(str(tmp_path / "table"))
    joined = datasets.concatenate_datasets([mapped.select(range(6)), table.select(range(6, 16))])
    expected = losses(model_folder, samples)
    for each in (table, mapped, joined, table.cast_column("input_ids", datasets.List(datasets.Value("int32")))):
        assert type(columns_of(each, "x")).__name__ == "ColumnDataset", each
        assert losses(model_folder, each) == expected
    backwards = mapped.select(range(15, -1, -1))
    assert losses(model_folder, backwards) == losses(model_folder, samples[::-1])
    masked = [{**sample, "attention_mask": [1] * 10 + [0] * 2} for sample in samples]
    assert losses(model_folder, datasets.Dataset.from_list(masked)) == losses(model_folder, masked)
    assert columns_of(table.remove_columns("labels"), "x")


def test_columns_are_read_without_python(model_folder, table, monkeypatch):
    called = []
    original = type(table).__getitem__

    def watched(self, key):
        called.append(key)
        return original(self, key)

    monkeypatch.setattr(type(table), "__getitem__", watched)
    losses(model_folder, table)
    assert not called
    losses(model_folder, table, data_collator=pad)
    assert called


def test_other_tables_are_read_item_by_item(model_folder, samples, table):
    from megalith.columns import columns_of

    for each in (
        table.with_format("torch"),
        table.add_column("weight", [[1.0] * 12] * 16),
        table.remove_columns("input_ids"),
        table.cast_column("labels", __import__("datasets").List(__import__("datasets").Value("float32"))),
    ):
        assert columns_of(each, "x") is each
    assert columns_of(samples, "x") is samples


def test_broken_rows_are_named(model_folder):
    datasets = pytest.importorskip("datasets")
    rows = [{"input_ids": [5, 6, 7], "labels": [5, 6]}] * 16
    with pytest.raises(megalith.DataError, match="sample 0 of train_dataset has 2 labels and 3 input_ids"):
        losses(model_folder, datasets.Dataset.from_list(rows))
    with pytest.raises(megalith.DataError, match="sample 0 of train_dataset holds 4294967296, which is not a token id"):
        losses(model_folder, datasets.Dataset.from_list([{"input_ids": [1 << 32, 1], "labels": [1, 1]}] * 16))
    with pytest.raises(megalith.DataError, match="sample 0 of train_dataset has no tokens"):
        losses(model_folder, datasets.Dataset.from_list([{"input_ids": [], "labels": []}, {"input_ids": [1], "labels": [1]}] * 16))
