"""Several ranks without a launcher: threads of a test, and processes that a script or a notebook starts."""

import logging
import os
import signal
import threading
import time

import megalith
import pytest
import torch
from conftest import MODEL, counting_samples, options, run_script
from megalith.testing import run_ranks


def losses_of(objective=None, **more):
    args = megalith.TrainingArguments(**options(gradient_accumulation_steps=2, **more))
    trainer = megalith.Trainer(str(MODEL), args, train_dataset=counting_samples(64), objective=objective)
    trainer.train()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


class Entropy(megalith.Objective):
    def loss(self, token_losses, batch):
        return torch.where(batch.labels == -100, 0, token_losses).sum()


@pytest.mark.parametrize("layout", [dict(tp=2, pp=2), dict(tp=2, cp=2), dict(pp=2, cp=2)], ids=str)
def test_a_loss_in_pytorch_equals_the_librarys(layout):
    for objective in (Entropy(), lambda losses, batch: losses.sum()):
        results = run_ranks(4, lambda: losses_of(objective, **layout, per_device_train_batch_size=4))
        library = run_ranks(4, lambda: losses_of(None, **layout, per_device_train_batch_size=4))
        assert all(each == results[0] for each in results)
        assert results[0] == pytest.approx(library[0], rel=1e-5)
        assert results[0][-1] < results[0][0]


def test_threads_are_ranks_and_leave_nothing():
    def place():
        megalith.initialize_megatron(megalith.TrainingArguments(use_cpu=True, tp=2))
        assert megalith.is_distribute_initialized()
        return megalith.rank(), megalith.world_size(), threading.current_thread().name

    assert run_ranks(2, place) == [(0, 2, "rank 0"), (1, 2, "rank 1")]
    assert not megalith.is_distribute_initialized() and megalith.world_size() == 1
    assert run_ranks(1, lambda: megalith.world_size()) == [1]
    with pytest.raises(megalith.ConfigError, match="0 ranks were asked for"):
        run_ranks(0, place)


def test_the_first_error_of_a_thread_arrives():
    def fail():
        args = megalith.TrainingArguments(**options(tp=2))
        model = megalith.AutoModel.from_pretrained(str(MODEL), args)
        if megalith.rank() == 1:
            raise LookupError("rank 1 has had enough")
        megalith.Trainer(model, args, train_dataset=counting_samples()).train()

    with pytest.raises(LookupError, match="rank 1 has had enough") as caught:
        run_ranks(2, fail)
    assert any("rank 1" in note for note in getattr(caught.value, "__notes__", ["rank 1"]))


def test_threads_are_ranks_on_the_cpu_only():
    with pytest.raises(megalith.ConfigError, match="use_cpu"):
        run_ranks(2, lambda: megalith.AutoModel.from_pretrained(str(MODEL), megalith.TrainingArguments(max_steps=1)))


def test_a_model_keeps_its_groups():
    def twice():
        megalith.AutoModel.from_pretrained(str(MODEL), megalith.TrainingArguments(**options(tp=2)))
        megalith.AutoModel.from_pretrained(str(MODEL), megalith.TrainingArguments(**options(tp=1)))

    with pytest.raises(megalith.ConfigError, match="ask for tp 1.* have tp 2"):
        run_ranks(2, twice)


# ---- Processes ----


def test_launch_returns_what_every_rank_returns(samples):
    torch.randn(300, 300) @ torch.randn(300, 300)  # OpenMP's threads do not survive a fork

    def train(rate):  # not importable, as in a notebook
        args = megalith.TrainingArguments(**options(tp=2, learning_rate=rate))
        output = megalith.Trainer(str(MODEL), args, train_dataset=samples).train()
        return megalith.rank(), os.getpid(), output.training_loss

    (first, second) = megalith.launch(train, (1e-3,), nproc=2)
    assert (first[0], second[0]) == (0, 1) and first[2] == second[2] > 0
    assert len({first[1], second[1], os.getpid()}) == 3
    assert not megalith.is_distribute_initialized()


def test_launch_raises_what_a_rank_raises():
    class Own(Exception):  # cannot be pickled
        pass

    def fail(kind):
        args = megalith.TrainingArguments(**options(tp=2))
        model = megalith.AutoModel.from_pretrained(str(MODEL), args)
        if megalith.rank() == 1:
            raise kind("rank 1 has had enough")
        megalith.Trainer(model, args, train_dataset=counting_samples()).train()

    with pytest.raises(LookupError, match="rank 1 has had enough") as caught:
        megalith.launch(fail, (LookupError,), nproc=2)
    assert "in fail" in str(caught.value.__cause__)
    with pytest.raises(RuntimeError, match="Own: rank 1 has had enough"):
        megalith.launch(fail, (Own,), nproc=2)
    with pytest.raises(megalith.CommError, match="rank 0 ended with exit code 3"):
        megalith.launch(lambda: os._exit(3))
    with pytest.raises(TypeError, match="the result of a rank cannot be sent"):
        megalith.launch(lambda: lambda: 1)
    with pytest.raises(megalith.ConfigError, match="nproc is 0"):
        megalith.launch(fail, nproc=0)


def test_launch_from_a_rank_is_refused(model_folder):
    megalith.initialize_megatron(megalith.TrainingArguments(use_cpu=True))
    with pytest.raises(megalith.ConfigError, match="this process is a rank already"):
        megalith.launch(print)


def test_launch_spawns():
    (out,) = run_script(
        """
        import megalith, os, pathlib, subprocess, sys, textwrap

        pathlib.Path("job.py").write_text(textwrap.dedent('''
            import megalith

            def place():
                megalith.initialize_megatron(megalith.TrainingArguments(use_cpu=True, tp=2))
                return megalith.rank()

            if __name__ == "__main__":
                print(megalith.launch(place, nproc=2, start_method="spawn"))
        '''))
        print(subprocess.run([sys.executable, "job.py"], stdout=subprocess.PIPE, text=True, check=True).stdout)
        """
    )
    assert "[0, 1]" in out


def test_ctrl_c_ends_launched_ranks_in_order(tmp_path):
    script = """
        import os, signal, time, megalith

        class Interrupt(megalith.TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                if state.global_step == 3 and megalith.rank() == 0:
                    os.kill(os.getppid(), signal.SIGINT)
                time.sleep(0.02)

        def train():
            saves = dict(output_dir=os.environ["OUT"], save_strategy="steps", save_steps=5000)
            args = megalith.TrainingArguments(**options(max_steps=5000, **saves))
            megalith.Trainer(str(MODEL), args, train_dataset=counting_samples(), callbacks=[Interrupt]).train()

        try:
            megalith.launch(train, nproc=2)
            print("not interrupted")
        except KeyboardInterrupt:
            print("interrupted", sorted(name for name in os.listdir(os.environ["OUT"]) if name.startswith("checkpoint")))
    """
    (out,) = run_script(script, env={"OUT": str(tmp_path / "out")})
    assert "interrupted ['checkpoint-" in out


def test_ranks_end_with_the_process_that_launched_them(tmp_path):
    script = """
        import os, signal, time, megalith

        def wait():
            with open(os.environ["OUT"], "w") as file:
                file.write(str(os.getpid()))
            if megalith.rank() == 0:
                os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(600)

        megalith.launch(wait)
    """
    with pytest.raises(AssertionError):
        run_script(script, env={"OUT": str(tmp_path / "pid")})
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the rank has outlived its parent")


# ---- The log ----


def test_lines_go_to_a_logger(model_folder, samples, capfd, caplog):
    megalith.log_to("megalith.test")
    try:
        with caplog.at_level(logging.INFO, logger="megalith.test"):
            args = megalith.TrainingArguments(**options(tf32=True))
            megalith.Trainer(model_folder, args, train_dataset=samples).train()
    finally:
        megalith.log_to(None)
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert any(level == "WARNING" and "tf32" in line for level, line in lines), lines
    steps = [line for level, line in lines if level == "INFO" and "loss" in line]
    assert len(steps) >= 4
    assert not any("\x1b" in line or "\r" in line for _, line in lines)
    assert "loss" not in capfd.readouterr().err
    megalith.Trainer(megalith.AutoModel.from_pretrained(model_folder, args), args, train_dataset=samples).train()
    assert "loss" in capfd.readouterr().err
