"""Runs from Python: what they compute equals what the program computes, and what Python brings takes part."""

import json
import threading

import megalith
import pytest
import torch
from conftest import counting_samples, options, run_script


def losses(trainer):
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


def train(model_folder, data=None, arguments=None, **parts):
    args = megalith.TrainingArguments(**options(**(arguments or {})))
    model = megalith.AutoModel.from_pretrained(model_folder, args)
    trainer = megalith.Trainer(model=model, args=args, train_dataset=data, **parts)
    output = trainer.train()
    assert output.global_step == args.max_steps
    return trainer


def pad(items, length, shifted):
    """A collator in plain PyTorch: rows of one length, padded at the end."""
    ids = torch.zeros(len(items), length, dtype=torch.long)
    labels = torch.full((len(items), length), -100)
    mask = torch.zeros(len(items), length, dtype=torch.long)
    for row, item in enumerate(items):
        count = len(item["input_ids"])
        ids[row, :count] = torch.tensor(item["input_ids"])
        kept = item["labels"][1:] + [-100] if shifted else item["labels"]
        labels[row, :count] = torch.tensor(kept)
        mask[row, :count] = 1
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


@pytest.fixture
def file_losses(tmp_path, model_folder, samples):
    """The losses of a run on a file with the same samples, by the program."""
    file = tmp_path / "samples.jsonl"
    file.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    out = tmp_path / "program"
    words = [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in options().items()]
    megalith.run_program(
        "train", *words, f"model_name_or_path={model_folder}", f"dataset={file}", f"output_dir={out}", "finetuning_type=full"
    )
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    found = [line["loss"] for line in lines if "loss" in line]
    assert len(found) == 4 and found[-1] < found[0]
    return found


def test_the_example_of_mcatrainer(tmp_path, model_folder, samples):
    from megalith import AutoModel, McaTrainer, Seq2SeqTrainingArguments

    args = Seq2SeqTrainingArguments(
        output_dir=str(tmp_path / "out"),
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        bf16=True,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=3,
        sequence_packing=True,
        use_cpu=True,
    )
    model = AutoModel.from_pretrained(model_folder, args)
    trainer = McaTrainer(
        model=model,
        args=args,
        tokenizer=None,
        data_collator=lambda items: pad(items, 16, shifted=True),
        train_dataset=samples,
    )
    output = trainer.train()
    trainer.save_model(tmp_path / "saved")
    assert output.global_step == 6 and output.training_loss > 0
    assert (tmp_path / "saved" / "config.json").exists() and (tmp_path / "saved" / "model.safetensors").exists()


def test_samples_from_python_train_like_those_of_a_file(model_folder, samples, file_losses):
    assert losses(train(model_folder, samples)) == file_losses
    tensors = [{key: torch.tensor(value) for key, value in sample.items()} for sample in samples]
    assert losses(train(model_folder, tensors)) == file_losses
    padded = [
        {
            "input_ids": sample["input_ids"] + [0, 0],
            "labels": sample["labels"] + [-100, -100],
            "attention_mask": [1] * len(sample["input_ids"]) + [0, 0],
            "text": "not a number",
        }
        for sample in samples
    ]
    assert losses(train(model_folder, padded)) == file_losses


def test_files_that_the_arguments_name(tmp_path, model_folder, samples, file_losses):
    file = tmp_path / "samples.jsonl"
    assert losses(train(model_folder, arguments={"dataset": str(file)})) == file_losses
    args = megalith.TrainingArguments(**options(dataset=str(file)))
    model = megalith.AutoModel.from_pretrained(model_folder, args)
    with pytest.raises(megalith.ConfigError, match="keep one of them"):
        megalith.Trainer(model, args, train_dataset=samples)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("length", [12, 16])
def test_a_collator_trains_like_the_librarys(model_folder, samples, file_losses, shifted, length):
    trainer = train(
        model_folder, samples, data_collator=lambda items: pad(items, length, shifted), labels_shifted=shifted
    )
    assert losses(trainer) == pytest.approx(file_losses, rel=1e-5)


def test_packing_by_the_collator(model_folder, file_losses, samples):
    def pack(items):
        """Two samples per row, numbered by attention_mask."""
        rows = [items[i : i + 2] for i in range(0, len(items), 2)]
        batch = {"input_ids": [], "labels": [], "attention_mask": []}
        for row in rows:
            batch["input_ids"].append(sum((each["input_ids"] for each in row), []))
            batch["labels"].append(sum((each["labels"] for each in row), []))
            batch["attention_mask"].append(sum(([k + 1] * len(each["input_ids"]) for k, each in enumerate(row)), []))
        return {key: torch.tensor(value) for key, value in batch.items()}

    packed = train(model_folder, samples, {"sequence_packing": True}, data_collator=pack)
    assert losses(packed) == pytest.approx(file_losses, rel=1e-5)


def test_a_collator_sees_whole_items(model_folder):
    class Texts:
        """Items without any tokens."""

        def __len__(self):
            return 16

        def __getitem__(self, index):
            return {"text": f"sample {index}", "sample": counting_samples()[index]}

    seen = []

    def collate(items):
        seen.extend(item["text"] for item in items)
        return pad([item["sample"] for item in items], 12, shifted=False)

    train(model_folder, Texts(), data_collator=collate)
    assert set(seen) == {f"sample {index}" for index in range(16)}


def test_a_loss_in_pytorch_equals_the_librarys(model_folder, samples, file_losses):
    assert losses(train(model_folder, samples, objective=lambda losses, batch: losses.sum())) == file_losses


def test_extra_keys_reach_the_loss(model_folder, samples, file_losses):
    class Weighted(megalith.Objective):
        extra_keys = ("weight", "scale")
        metrics_keys = ("plain_loss",)

        def loss(self, token_losses, batch):
            assert batch.extras["weight"].shape == token_losses.shape == batch.labels.shape
            assert batch.extras["scale"].shape == (4,)
            weighted = (token_losses * batch.extras["weight"]).sum() * batch.extras["scale"].mean()
            return {
                "loss": weighted,
                "count": batch.loss_tokens,
                "metrics": {"plain_loss": (token_losses.detach().sum(), batch.loss_tokens)},
            }

    weighted = [{**sample, "weight": [2.0] * len(sample["input_ids"]), "scale": 0.5} for sample in samples]
    trainer = train(model_folder, weighted, objective=Weighted())
    assert losses(trainer) == pytest.approx(file_losses, rel=1e-6)
    plain = [line["plain_loss"] for line in trainer.state.log_history if "plain_loss" in line]
    assert plain == pytest.approx(file_losses, rel=1e-6)

    def collate(items):
        batch = pad(items, 12, shifted=False)
        return {**batch, "weight": torch.full((len(items), 12), 2.0), "scale": torch.full((len(items),), 0.5)}

    trainer = train(model_folder, samples, objective=Weighted(), data_collator=collate)
    assert losses(trainer) == pytest.approx(file_losses, rel=1e-5)


def test_backward_through_a_python_function(model_folder, samples, file_losses):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(context, value):
            return value * 1

        @staticmethod
        def backward(context, gradient):
            return gradient * 0

    trainer = train(model_folder, samples, objective=lambda losses, batch: Doubled.apply(losses).sum())
    # Each step sees other samples of the same model: without gradients nothing is learned.
    assert losses(trainer)[0] == file_losses[0]
    assert losses(trainer)[-1] > file_losses[-1]


RANKS = """
    import json, torch, megalith

    class Focal(megalith.Objective):
        def loss(self, token_losses, batch):
            return ((1 - (-token_losses.detach()).exp()) ** 2 * token_losses).sum()

    args = megalith.TrainingArguments(**options(per_device_train_batch_size=BATCH, gradient_accumulation_steps=4, MORE))
    model = megalith.AutoModel.from_pretrained(str(MODEL), args)
    trainer = megalith.Trainer(model, args, train_dataset=counting_samples(64), objective=Focal())
    trainer.train()
    print("losses", json.dumps([line["loss"] for line in trainer.state.log_history if "loss" in line]))
"""


def losses_of_ranks(ranks, batch, more):
    script = RANKS.replace("BATCH", str(batch)).replace("MORE", more)
    outputs = run_script(script, ranks)
    found = [json.loads(line.removeprefix("losses ")) for out in outputs for line in out.splitlines() if line.startswith("losses ")]
    assert len(found) == ranks and all(each == found[0] for each in found)
    return found[0]


def test_a_loss_in_pytorch_on_four_ranks():
    alone = losses_of_ranks(1, 4, "")
    together = losses_of_ranks(4, 4, "tensor_model_parallel_size=2, pipeline_model_parallel_size=2")
    assert alone[-1] < alone[0]
    assert together == pytest.approx(alone, rel=1e-5)


def test_callbacks_see_and_steer_the_run(tmp_path, model_folder, samples):
    seen = []

    class Watch(megalith.TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            seen.append(("train_begin", state.global_step, args.seed))

        def on_step_end(self, args, state, control, metrics=None, **kwargs):
            seen.append(("step_end", state.global_step, metrics["loss"] > 0))
            if state.global_step == 2:
                control.should_save = True
            if state.global_step == 3:
                control.should_training_stop = True

        def on_log(self, args, state, control, logs=None, **kwargs):
            if "loss" in logs:
                seen.append(("log", state.global_step, state.log_history[-1]["loss"] == logs["loss"]))

        def on_save(self, args, state, control, checkpoint=None, **kwargs):
            seen.append(("save", state.global_step, checkpoint.endswith("checkpoint-2")))

        def on_train_end(self, args, state, control, **kwargs):
            seen.append(("train_end", state.global_step, state.max_steps))

    args = megalith.TrainingArguments(**options(output_dir=str(tmp_path / "out")))
    trainer = megalith.Trainer(model_folder, args, train_dataset=samples, callbacks=[Watch])
    assert trainer.train().global_step == 3
    assert seen == [
        ("train_begin", 0, 7),
        ("step_end", 1, True),
        ("log", 1, True),
        ("step_end", 2, True),
        ("log", 2, True),
        ("save", 2, True),
        ("step_end", 3, True),
        ("log", 3, True),
        ("train_end", 3, 4),
    ]
    assert (tmp_path / "out" / "checkpoint-2").exists() and not (tmp_path / "out" / "checkpoint-3").exists()


def test_evaluation_of_several_sets(model_folder, samples):
    args = megalith.TrainingArguments(**options(eval_strategy="no"))
    model = megalith.AutoModel.from_pretrained(model_folder, args)
    one = megalith.Trainer(model, args, eval_dataset=samples).evaluate()
    two = megalith.Trainer(model, args, eval_dataset={"a": samples, "b": samples[:3]}).evaluate()
    assert one["eval_loss"] > 0 and two["eval_a_loss"] == one["eval_loss"] and two["eval_b_loss"] != one["eval_loss"]


def test_preferences(model_folder):
    pairs = [
        {
            "chosen_input_ids": [5, 6, 7 + i % 3],
            "chosen_labels": [-100, 6, 7 + i % 3],
            "rejected_input_ids": [5, 8, 9],
            "rejected_labels": [-100, 8, 9],
        }
        for i in range(16)
    ]
    args = megalith.TrainingArguments(**options(stage="dpo", max_steps=8))
    trainer = megalith.DpoTrainer(megalith.AutoModel.from_pretrained(model_folder, args), args, train_dataset=pairs)
    trainer.train()
    lines = [line for line in trainer.state.log_history if "rewards/margins" in line]
    assert lines[-1]["loss"] < lines[0]["loss"] and lines[-1]["rewards/margins"] > 0
    with pytest.raises(megalith.ConfigError, match="DpoTrainer needs"):
        megalith.DpoTrainer(model_folder, megalith.TrainingArguments())


def test_errors_of_python_arrive_as_they_are(model_folder, samples):
    class Broken(list):
        def __getitem__(self, index):
            if index >= 8:
                raise KeyError(f"item {index} is gone")
            return super().__getitem__(index)

    with pytest.raises(KeyError, match="item 8 is gone"):
        train(model_folder, Broken(samples))

    def collate(items):
        raise ZeroDivisionError("in the collator")

    with pytest.raises(ZeroDivisionError, match="in the collator"):
        train(model_folder, samples, data_collator=collate)

    class Angry(megalith.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise LookupError("in the callback")

    with pytest.raises(LookupError, match="in the callback"):
        train(model_folder, samples, callbacks=[Angry()])


@pytest.mark.parametrize(
    "broken, message",
    [
        ({"input_ids": [5, 6], "labels": [5]}, "sample 0 of train_dataset has 1 labels and 2 input_ids"),
        ({"labels": [5, 6]}, 'sample 0 of train_dataset has no "input_ids"'),
        ({"input_ids": "text"}, 'sample 0 of train_dataset has a str as "input_ids"'),
        ({"input_ids": [5, 6], "weight": [1.0, 2.0, 3.0]}, '3 values of "weight" and 2 tokens'),
        ([5, 6], "sample 0 of train_dataset is a list; it must be a dict"),
    ],
)
def test_broken_samples_are_named(model_folder, broken, message):
    with pytest.raises(megalith.DataError, match=message):
        train(model_folder, [broken] * 16)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda batch: {"labels": batch["labels"]}, 'no "input_ids"'),
        (lambda batch: {**batch, "labels": batch["labels"][:, 1:]}, "they must have the same sizes"),
        (lambda batch: {**batch, "input_ids": batch["input_ids"].float()}, 'Float \\[4, 12\\] as "input_ids"'),
        (lambda batch: {**batch, "position_ids": batch["input_ids"]}, "position_ids"),
        (lambda batch: {**batch, "attention_mask": batch["attention_mask"].flip(1)}, "padding before tokens"),
        (lambda batch: [1], "data_collator has returned a list"),
    ],
)
def test_broken_batches_are_named(model_folder, samples, change, message):
    short = [{key: value[:10] for key, value in sample.items()} for sample in samples]
    with pytest.raises(megalith.DataError, match=message):
        train(model_folder, short, data_collator=lambda items: change(pad(items, 12, shifted=False)))


def test_mistakes_of_a_program_are_named(model_folder, samples):
    args = megalith.TrainingArguments(**options(output_dir=None))
    with pytest.raises(megalith.ConfigError, match="no-such-model"):
        megalith.AutoModel.from_pretrained("no-such-model", args)
    model = megalith.AutoModel.from_pretrained(model_folder, args)
    with pytest.raises(megalith.ConfigError, match="there is no data"):
        megalith.Trainer(model, args)
    with pytest.raises(megalith.ConfigError, match="train_dataset is a generator, an iterator"):
        megalith.Trainer(model, args, train_dataset=(each for each in samples))
    with pytest.raises(megalith.ConfigError, match="args differ"):
        megalith.Trainer(model, megalith.TrainingArguments(**options(output_dir=None, seed=8)), train_dataset=samples)
    with pytest.raises(megalith.ConfigError, match="resume_from_checkpoint is x"):
        megalith.Trainer(model, args, train_dataset=samples).train("x")
    trainer = megalith.Trainer(model, args, train_dataset=samples)
    with pytest.raises(megalith.ConfigError, match="save_model needs a folder"):
        trainer.save_model()
    megalith.shutdown_megatron()
    with pytest.raises(megalith.ConfigError, match="the trainer is closed"):
        trainer.train()
    with pytest.raises(megalith.ConfigError, match="the model is closed"):
        model.save_pretrained("nowhere")


def test_a_run_continues_from_its_checkpoint(tmp_path, model_folder, samples):
    class StopAtTwo(megalith.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 2

    def run(folder, callbacks=(), **more):
        args = megalith.TrainingArguments(
            **options(output_dir=str(tmp_path / folder), save_strategy="steps", save_steps=2, **more)
        )
        trainer = megalith.Trainer(model_folder, args, train_dataset=samples, callbacks=callbacks)
        trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
        return losses(trainer)

    whole = run("whole")
    assert run("parts", [StopAtTwo]) == whole[:2]
    assert run("parts", resume_from_checkpoint="auto") == whole


def test_other_threads_run_while_the_library_trains(model_folder, samples):
    counted = [0]
    done = threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1
            done.wait(0.0005)

    during = []

    class Look(megalith.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            during.append(counted[0])

    counter = threading.Thread(target=count)
    counter.start()
    try:
        train(model_folder, samples, {"max_steps": 30}, callbacks=[Look()])
    finally:
        done.set()
        counter.join()
    assert during[-1] > during[0] + 5


def test_ctrl_c_saves_and_raises(tmp_path):
    script = """
        import os, signal, megalith

        class Interrupt(megalith.TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                if state.global_step == 3:
                    os.kill(os.getpid(), signal.SIGINT)

        saves = dict(output_dir=os.environ["OUT"], save_strategy="steps", save_steps=500)
        args = megalith.TrainingArguments(**options(max_steps=1000, **saves))
        trainer = megalith.Trainer(str(MODEL), args, train_dataset=counting_samples(), callbacks=[Interrupt])
        try:
            trainer.train()
            print("not interrupted")
        except KeyboardInterrupt:
            print("interrupted at", trainer.state.global_step)
    """
    (out,) = run_script(script, env={"OUT": str(tmp_path / "out")})
    step = int(out.split("interrupted at")[1])
    assert 3 <= step <= 5, out
    assert (tmp_path / "out" / f"checkpoint-{step}").exists()


def test_a_dataset_of_hugging_face(model_folder, samples, file_losses):
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list(samples)
    assert losses(train(model_folder, table)) == file_losses
    assert losses(train(model_folder, table.with_format("torch"))) == file_losses


def test_an_interrupted_rank_stops_all(tmp_path):
    script = """
        import os, signal, megalith

        class Interrupt(megalith.TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                if state.global_step == 3 and os.environ["RANK"] == "1":
                    os.kill(os.getpid(), signal.SIGINT)

        args = megalith.TrainingArguments(**options(max_steps=1000, output_dir=os.environ["OUT"]))
        trainer = megalith.Trainer(str(MODEL), args, train_dataset=counting_samples(), callbacks=[Interrupt])
        try:
            trainer.train()
        except KeyboardInterrupt:
            print("interrupted at", trainer.state.global_step)
    """
    outputs = run_script(script, ranks=2, env={"OUT": str(tmp_path / "out")})
    assert len({out.split("interrupted at")[1] for out in outputs}) == 1


def test_a_failed_rank_ends_the_others(tmp_path):
    script = """
        import os, megalith

        class Fail(megalith.TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                if state.global_step == 3 and os.environ["RANK"] == "1":
                    raise ValueError("rank 1 has had enough")

        args = megalith.TrainingArguments(**options(max_steps=1000))
        trainer = megalith.Trainer(str(MODEL), args, train_dataset=counting_samples(), callbacks=[Fail])
        try:
            trainer.train()
        except megalith.CommError as error:
            assert "rank 1 has had enough" in str(error), error
            with open(os.environ["TOLD"], "w") as file:
                file.write("told")
            raise SystemExit(0)
    """
    told = tmp_path / "told"
    with pytest.raises(AssertionError, match="rank 1 has had enough"):
        run_script(script, ranks=2, timeout=120, env={"TOLD": str(told)})
    assert told.read_text() == "told"
