"""step_overhead.py [ROUNDS [CASE…]]: what a step costs from Python, beside the same step of the program.

Both train the same small model on the same file. What counts is CPU time, which other work on the machine does not change: that of
a long run without that of a short one, so that the start of the processes is left out, divided by the number of steps between. The
result is the median of the rounds' ratios. Cases:

  file        the library reads the file: nothing of Python is called during a step
  collator    samples and a collator of Python, which the library calls ahead of training
  callback    samples of Python, and a callback for each step

Prints a line of JSON per case. PYTHONPATH=build/release/python, or an installed wheel.
"""

import json
import os
import pathlib
import statistics
import sys
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")

SHORT, LONG = 5, 45  # steps
SHAPE = dict(
    architectures=["LlamaForCausalLM"],
    model_type="llama",
    vocab_size=2048,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=32,
    max_position_embeddings=512,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    hidden_act="silu",
    tie_word_embeddings=False,
    initializer_range=0.02,
    eos_token_id=0,
    torch_dtype="float32",
)


def options(out, steps):
    return dict(
        output_dir=str(out),
        overwrite_output_dir=True,
        train_from_scratch=True,
        finetuning_type="full",
        use_cpu=True,
        max_steps=steps,
        per_device_train_batch_size=4,
        cutoff_len=128,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        disable_shuffling=True,
    )


def cpu_seconds(command, environment):
    """Returns the CPU time of a process, which has to succeed."""
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.execvpe(command[0], command, environment)
    _, status, usage = os.wait4(pid, 0)
    assert status == 0, f"{command} has failed"
    return usage.ru_utime + usage.ru_stime


def seconds_of_step(run):
    """Returns the CPU time of a step; `run` gives that of a run of so many steps."""
    short, long = run(SHORT), run(LONG)
    return (long - short) / (LONG - SHORT)


def by_program(work, steps):
    from megalith.program import environment, program_path

    values = {**options(work / "program", steps), "model_name_or_path": work / "shape", "dataset": work / "rows.jsonl"}
    words = [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in values.items()]
    return cpu_seconds([program_path(), "train", *words], environment())


def by_python(work, case, steps):
    return cpu_seconds([sys.executable, __file__, "--run", case, str(work), str(steps)], dict(os.environ))


def run(case, work, steps):
    import megalith
    import torch

    work = pathlib.Path(work)
    more = {"dataset": str(work / "rows.jsonl")} if case == "file" else {}
    args = megalith.TrainingArguments(**options(work / case, int(steps)), **more)
    parts = {}
    if case == "collator":
        rows = [json.loads(line) for line in (work / "rows.jsonl").read_text().splitlines()]
        parts["train_dataset"] = rows
        parts["data_collator"] = lambda items: {
            key: torch.tensor([item[key] for item in items]) for key in ("input_ids", "labels")
        }
    if case == "callback":

        class Count(megalith.TrainerCallback):
            steps = 0

            def on_step_end(self, args, state, control, metrics=None, **kwargs):
                self.steps += metrics["loss"] > 0

        parts["callbacks"] = [Count()]
        parts["train_dataset"] = [json.loads(line) for line in (work / "rows.jsonl").read_text().splitlines()]
    model = megalith.AutoModel.from_pretrained(work / "shape", args)
    megalith.Trainer(model, args, **parts).train()


def main(rounds=5, *cases):
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "shape").mkdir()
        (work / "shape" / "config.json").write_text(json.dumps(SHAPE))
        rows = [[(7 * i + 3 * k) % 2000 for k in range(128)] for i in range(4 * LONG)]
        (work / "rows.jsonl").write_text("".join(json.dumps({"input_ids": row, "labels": row}) + "\n" for row in rows))
        for case in cases or ("file", "collator", "callback"):
            program, python = [], []
            for _ in range(rounds):
                program.append(seconds_of_step(lambda steps: by_program(work, steps)))
                python.append(seconds_of_step(lambda steps: by_python(work, case, steps)))
            ratios = [ours / theirs for ours, theirs in zip(python, program)]
            result = {"case": case, "ratio": round(statistics.median(ratios), 4), "ratios": [round(each, 4) for each in ratios]}
            print(json.dumps({**result, "program_ms": round(1000 * statistics.median(program), 2)}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(*sys.argv[2:])
    else:
        main(int((sys.argv[1:] or ["5"])[0]), *sys.argv[2:])
