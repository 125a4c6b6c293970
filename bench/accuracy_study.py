#!/usr/bin/env python3
"""How far training in bf16 is from training in fp32: ours beside PyTorch's programs, from equal weights on equal rows.

  accuracy_study.py --out FOLDER [--shapes gpt2,…] [--programs ours-bf16,…] [--seeds 3] [--steps 200]

Random models of five families are trained on the text of this repository: by `megalith train` in fp32, in bf16, and in
bf16 with fp32_residual_connection; and by transformers' models (bench/peers/accuracy.py) in fp32, in pure bf16 with
fp32 main parameters, and under autocast. A run's distance from fp32 is |loss - loss of transformers in fp32| of the
same step and seed. Every run's losses are appended to FOLDER/losses.jsonl as soon as it has finished, and a run that is
there is not repeated. At the end: one JSON line per shape and program, and a table (mean and largest distance over all
steps and seeds).
`ours-fp32` must be next to nothing; it also shows how much of a distance is not the number format's.

The Python that runs this needs torch and transformers. Models are made in a temporary folder.
"""
import argparse
import collections
import concurrent.futures
import glob
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from statistics import mean

HERE = os.path.dirname(os.path.abspath(__file__))
PEER = os.path.join(HERE, "peers", "accuracy.py")
SHAPES = ["gpt2", "llama", "qwen3", "qwen3_moe", "deepseek_v3"]
OURS = {"ours-fp32": [], "ours-bf16": ["--bf16"], "ours-bf16-fp32-stream": ["--bf16", "--fp32_residual_connection"]}
PEERS = {"torch-fp32": "fp32", "torch-bf16": "bf16", "torch-autocast": "autocast"}
REFERENCE = "torch-fp32"
VOCABULARY = {"small": 16384, "tiny": 1024}


def text_ids(vocabulary):
    """Returns the repository's sentences and sources as ids of words: the most frequent ones, and 0 for all others."""
    root = os.path.dirname(HERE)
    paths = sorted(glob.glob(f"{root}/docs/*.md") + glob.glob(f"{root}/src/megalith/**/*.cc", recursive=True))
    words = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            words += re.findall(r"\w+|[^\w\s]|\n|  +", file.read())
    counts = collections.Counter(words)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - 1]
    ids = {word: i + 1 for i, word in enumerate(ranked)}
    return [ids.get(word, 0) for word in words]


class Study:
    def __init__(self, options, folder):
        self.o, self.folder, self.lock = options, folder, threading.Lock()
        self.path = os.path.join(options.out, "losses.jsonl")
        os.makedirs(options.out, exist_ok=True)
        self.runs = self.read()
        self.ids = text_ids(VOCABULARY[options.size])
        # Part of a run's key: another text is another run.
        self.text = zlib.crc32(json.dumps(self.ids).encode())
        self.run = dict(steps=options.steps, batch=options.batch, learning_rate=options.learning_rate,
                        weight_decay=0.1, beta2=0.95, warmup=max(1, options.steps // 10), threads=options.threads)

    def key(self, shape, seed, program):
        o = self.o
        return (self.text, o.device, o.size, o.steps, o.batch, o.length, o.learning_rate, shape, seed, program)

    def read(self):
        if not os.path.exists(self.path):
            return {}
        with open(self.path) as file:
            return {tuple(line["run"]): line["losses"] for line in map(json.loads, file)}

    def keep(self, shape, seed, program, losses):
        key = self.key(shape, seed, program)
        if len(losses) != self.o.steps:
            raise SystemExit(f"{program} of {shape} took {len(losses)} steps instead of {self.o.steps}")
        with self.lock:
            self.runs[key] = losses
            with open(self.path, "a") as file:
                file.write(json.dumps(dict(run=key, losses=losses)) + "\n")

    def call(self, words, name):
        env = dict(os.environ, ACCURACY_RUN=json.dumps(self.run), OMP_NUM_THREADS=str(self.o.threads))
        start = time.time()
        result = subprocess.run(words, env=env, text=True, capture_output=True)
        if result.returncode:
            raise RuntimeError(f"{name} failed with exit code {result.returncode}:\n{result.stderr[-3000:]}")
        print(f"{name}: {time.time() - start:.0f} s", file=sys.stderr, flush=True)
        return result.stdout

    def model(self, shape, seed):
        return os.path.join(self.folder, f"{shape}-{seed}")

    def data(self, seed):
        return os.path.join(self.folder, f"rows-{seed}.jsonl")

    def write_data(self):
        rows = self.o.steps * self.o.batch
        for seed in range(self.o.seeds):
            chosen = random.Random(seed)
            with open(self.data(seed), "w") as file:
                for _ in range(rows):
                    at = chosen.randrange(len(self.ids) - self.o.length)
                    file.write(json.dumps(dict(input_ids=self.ids[at : at + self.o.length])) + "\n")

    def make(self, shape):
        self.call([sys.executable, PEER, "make", shape, self.o.size, os.path.join(self.folder, shape)] +
                  [str(seed) for seed in range(self.o.seeds)], f"{shape}: weights")

    def train_ours(self, shape, seed, program):
        out = os.path.join(self.folder, f"out-{shape}-{seed}-{program}")
        words = [self.o.megalith, "train", "--finetuning_type=full", f"--model_name_or_path={self.model(shape, seed)}",
                 f"--dataset={self.data(seed)}", f"--output_dir={out}", f"--cutoff_len={self.o.length}",
                 f"--max_steps={self.o.steps}", "--train_sampling_strategy=sequential",
                 f"--per_device_train_batch_size={self.o.batch}", f"--learning_rate={self.o.learning_rate}",
                 "--lr_scheduler_type=constant_with_warmup", f"--warmup_steps={self.run['warmup']}",
                 "--adam_beta2=0.95", "--weight_decay=0.1", "--max_grad_norm=1.0", "--logging_steps=1",
                 "--save_strategy=no"]
        words += (["--use_cpu"] if self.o.device == "cpu" else []) + OURS[program]
        self.call(words, f"{shape} {seed}: {program}")
        with open(os.path.join(out, "metrics.jsonl")) as file:
            lines = [json.loads(line) for line in file]
        shutil.rmtree(out)
        self.keep(shape, seed, program, [line["loss"] for line in lines if "loss" in line])

    def train_peer(self, shape, seeds, program):
        jobs = [f"{self.model(shape, seed)}:{self.data(seed)}" for seed in seeds]
        output = self.call([sys.executable, PEER, "train", PEERS[program], self.o.device] + jobs, f"{shape}: {program}")
        for seed, line in zip(seeds, output.splitlines()):
            self.keep(shape, seed, program, json.loads(line)["losses"])

    def missing(self, shape, program):
        return [s for s in range(self.o.seeds) if self.key(shape, s, program) not in self.runs]

    def execute(self):
        """Makes all models, then trains them, several runs at a time; the slow ones first."""
        programs, failures, self.failed = self.o.programs, [], False
        needed = [shape for shape in self.o.shapes if any(self.missing(shape, p) for p in programs)]
        if not needed:
            return
        self.write_data()
        with concurrent.futures.ThreadPoolExecutor(self.o.jobs) as pool:
            for work in [pool.submit(self.make, shape) for shape in needed]:
                work.result()
            works = []
            for shape in sorted(self.o.shapes, key=lambda s: "moe" not in s and "deepseek" not in s):
                for program in (p for p in programs if p in PEERS):
                    seeds = self.missing(shape, program)
                    if seeds:
                        works.append(pool.submit(self.train_peer, shape, seeds, program))
                for program in (p for p in programs if p in OURS):
                    works += [pool.submit(self.train_ours, shape, s, program) for s in self.missing(shape, program)]
            for work in works:
                if work.exception():
                    failures.append(work.exception())
        for failure in failures:
            print(failure, file=sys.stderr)
        self.failed = bool(failures)

    def rows(self):
        for shape in self.o.shapes:
            for program in self.o.programs:
                distances, last, final = [], [], []
                for seed in range(self.o.seeds):
                    ours = self.runs.get(self.key(shape, seed, program))
                    reference = self.runs.get(self.key(shape, seed, REFERENCE))
                    if ours is None or reference is None:
                        break
                    distances += [abs(a - b) for a, b in zip(ours, reference)]
                    tail = max(1, self.o.steps // 10)
                    last += [a - b for a, b in zip(ours[-tail:], reference[-tail:])]
                    final.append(ours[-1])
                else:
                    yield dict(shape=shape, program=program, seeds=self.o.seeds, steps=self.o.steps,
                               mean=mean(distances), largest=max(distances), last_tenth=mean(last), final=mean(final))

    def report(self):
        rows = list(self.rows())
        for row in rows:
            print(json.dumps(dict(bench="accuracy", device=self.o.device, size=self.o.size, **row)))
        print("\n| shape | program | mean distance | largest | mean signed, last tenth | final loss |")
        print("|---|---|--:|--:|--:|--:|")
        for r in rows:
            print(f"| {r['shape']} | {r['program']} | {r['mean']:.6f} | {r['largest']:.6f} | {r['last_tenth']:+.6f} | "
                  f"{r['final']:.4f} |")


def parse():
    known = list(OURS) + list(PEERS)
    default = os.path.join(os.path.dirname(HERE), "build", "cuda", "bin", "megalith")
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True, help="folder of losses.jsonl; a run that is there is not repeated")
    p.add_argument("--shapes", default=",".join(SHAPES))
    p.add_argument("--programs", default=",".join(known))
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--length", type=int, default=512)
    p.add_argument("--learning-rate", type=float, default=3e-4)
    p.add_argument("--size", default="small", choices=sorted(VOCABULARY))
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    p.add_argument("--megalith", default=default, help="program (%(default)s)")
    p.add_argument("--jobs", type=int, default=10, help="runs at a time (%(default)s)")
    p.add_argument("--threads", type=int, default=1, help="threads per run (%(default)s)")
    o = p.parse_args()
    o.shapes, o.programs = o.shapes.split(","), o.programs.split(",")
    for given, allowed in ((o.shapes, SHAPES), (o.programs, known)):
        for word in given:
            if word not in allowed:
                p.error(f"{word} is none of {', '.join(allowed)}")
    if REFERENCE not in o.programs:
        o.programs.insert(0, REFERENCE)
    return o


def main():
    with tempfile.TemporaryDirectory() as folder:
        study = Study(parse(), folder)
        study.execute()
        study.report()
    return 1 if study.failed else 0


if __name__ == "__main__":
    sys.exit(main())
