"""collator_prefetch.py [ROUNDS [CASE…]]: how much of a Python collator's time training waits for.

The library calls a collator on a thread, ahead of training. A small model is trained with one, and a callback notes how long it
takes from the end of a step to the beginning of the next, in which training waits for its batch. Cases:

  pad        a usual collator: lists of unequal lengths become padded tensors with a mask and labels
  tokenize   the same of texts, by the package `tokenizers` (left out where it is missing)
  busy-25    pad, and Python code that holds the interpreter's lock for a quarter of the time of a step
  busy-50    the same for half of it
  busy-90    the same for nine tenths of it: what is left of the limit

Prints a line of JSON per case: milliseconds of a collator's call, of a step, and of the step's wait for its batch with this
collator and with rows of a file in its place (medians over steps and rounds), and `hidden`, the share of a call that no step
waits for. One core must be free for the thread. PYTHONPATH=build/release/python, or an installed wheel.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from step_overhead import SHAPE, options

BATCH, LENGTH, WARM_UP, STEPS = 8, 128, 5, 30
CASES = ("pad", "tokenize", "busy-25", "busy-50", "busy-90")
WORDS = [f"word{i} " for i in range(1500)]


def samples():
    """Lists of 96 to 128 ids, the same in every run; the first of a batch is full, so that every batch has one width."""
    rows = []
    for i in range(BATCH * STEPS):
        length = LENGTH if i % BATCH == 0 else 96 + (37 * i) % 33
        rows.append([(7 * i + 3 * k) % 2000 for k in range(length)])
    return rows


def padded(rows):
    import torch

    width = max(map(len, rows))
    batch = {
        "input_ids": [row + [0] * (width - len(row)) for row in rows],
        "labels": [row + [-100] * (width - len(row)) for row in rows],
        "attention_mask": [[1] * len(row) + [0] * (width - len(row)) for row in rows],
    }
    return {key: torch.tensor(value) for key, value in batch.items()}


def tokenizer_of_words():
    import tokenizers

    vocabulary = {word.strip(): i for i, word in enumerate(WORDS)} | {"[UNK]": len(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return tokenizer


class Collator:
    """Does what the case says and notes how long each call took."""

    def __init__(self, case, busy_seconds):
        self.busy_seconds, self.seconds = busy_seconds, []
        self.tokenizer = tokenizer_of_words() if case == "tokenize" else None

    def __call__(self, items):
        start = time.perf_counter()
        if self.tokenizer:
            texts = [item["text"] for item in items]
            rows = [encoding.ids[:LENGTH] for encoding in self.tokenizer.encode_batch(texts)]
        else:
            rows = [item["input_ids"] for item in items]
        batch = padded(rows)
        while time.perf_counter() - start < self.busy_seconds:
            sum(range(2000))
        self.seconds.append(time.perf_counter() - start)
        return batch


def run(case, work, busy_seconds):
    """Trains once and prints the medians of a step, of its wait for the batch, and of a collator's call, in milliseconds."""
    import megalith

    work = pathlib.Path(work)
    steps = {**options(work / case, STEPS), "per_device_train_batch_size": BATCH, "cutoff_len": LENGTH}
    parts, collator = {}, None
    if case == "file":
        steps["dataset"] = str(work / "rows.jsonl")
    else:
        key, values = ("text", texts()) if case == "tokenize" else ("input_ids", samples())
        collator = Collator(case, float(busy_seconds))
        parts = {"train_dataset": [{key: value} for value in values], "data_collator": collator}
    args = megalith.TrainingArguments(**steps)

    begins, ends = [], []

    class Clock(megalith.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            begins.append(1000 * time.perf_counter())

        def on_step_end(self, args, state, control, **kwargs):
            ends.append(1000 * time.perf_counter())

    model = megalith.AutoModel.from_pretrained(work / "shape", args)
    megalith.Trainer(model, args, callbacks=[Clock()], **parts).train()
    waits = [begin - end for end, begin in zip(ends, begins[1:])][WARM_UP:]
    spans = [b - a for a, b in zip(begins, begins[1:])][WARM_UP:]
    calls = [1000 * each for each in collator.seconds[WARM_UP:]] if collator else [0]
    print(json.dumps({"step": statistics.median(spans), "wait": statistics.median(waits), "call": statistics.median(calls)}))


def texts():
    return ["".join(WORDS[id % len(WORDS)] for id in row) for row in samples()]


def measured(case, work, busy_seconds=0.0):
    words = [sys.executable, __file__, "--run", case, str(work), str(busy_seconds)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{case} has failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def is_possible(case):
    if case != "tokenize":
        return True
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        print("collator_prefetch: without the package tokenizers there is no case tokenize", file=sys.stderr)
        return False
    return True


def main(rounds=5, *cases):
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "shape").mkdir()
        (work / "shape" / "config.json").write_text(json.dumps(SHAPE))
        rows = [json.dumps({"input_ids": row, "labels": row}) + "\n" for row in samples()]
        (work / "rows.jsonl").write_text("".join(rows))
        for case in filter(is_possible, cases or CASES):
            found = {"file": [], case: []}
            for _ in range(rounds):
                found["file"].append(measured("file", work))
                share = int(case[5:]) / 100 if case.startswith("busy-") else 0
                found[case].append(measured(case, work, share * found["file"][-1]["step"] / 1000))
            median = lambda kind, key: statistics.median(each[key] for each in found[kind])  # noqa: E731
            result = {
                "call_ms": median(case, "call"),
                "step_ms": median(case, "step"),
                "wait_ms": median(case, "wait"),
                "wait_for_file_ms": median("file", "wait"),
            }
            exposed = max(0.0, result["wait_ms"] - result["wait_for_file_ms"])
            result["hidden"] = 1 - exposed / result["call_ms"]
            print(json.dumps({"case": case, **{key: round(value, 4) for key, value in result.items()}}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(*sys.argv[2:])
    else:
        main(int((sys.argv[1:] or ["5"])[0]), *sys.argv[2:])
