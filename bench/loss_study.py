#!/usr/bin/env python3
"""What optimizers and number formats do to what is learned: held-out losses of a llama of 305 million parameters on real text.

  loss_study.py --text TRAIN.jsonl --held-out TEXT.jsonl --tokenizer FOLDER --out FOLDER
                [--runs adamw:6e-4,muon:6e-4,adamw:6e-4:delayed+head] [--steps 2000] [--batch 8] [--length 1024] [--jobs 1]

A run is an optimizer, its learning rate and the format of its products: bf16 unless a recipe of fp8 is named (tensorwise,
delayed, blockwise), with `+head` and `+experts` for their products, too. All start from equal weights and read the same rows in
the same order: bf16 with fp32 main parameters, the rate warmed up over a tenth of the steps and lowered to a tenth along a
cosine, weight decay 0.1, gradients clipped to norm 1. Muon takes `muon_extra_scale_factor 0.2` and Nesterov's look ahead, so
that its updates are as large as AdamW's, and AdamW for embedding, head and norms. `--shape experts` trains a mixture of experts
instead.

The texts are lines of JSON with a field "text". --jobs runs go at a time, which changes no loss, but makes seconds worthless: the
cost of a step is what `gpu_bench` measures. FOLDER/RUN keeps the metrics of each run; a run that is there is not repeated. Prints
a line of JSON per run, and a table of held-out losses.
"""
import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPES = {
    "medium": dict(hidden_size=1024, num_hidden_layers=20, num_attention_heads=16, num_key_value_heads=16, head_dim=64,
                   intermediate_size=3072),
    "experts": dict(hidden_size=768, num_hidden_layers=8, num_attention_heads=12, num_key_value_heads=12, head_dim=64,
                    intermediate_size=2048, num_experts=16, num_experts_per_tok=4, moe_intermediate_size=768,
                    norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], router_aux_loss_coef=0.001),
    "tiny": dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, head_dim=16,
                 intermediate_size=176),  # for a look on a CPU
}
RECIPES = {
    "tensorwise": ["--fp8=hybrid", "--fp8_recipe=tensorwise"],
    "delayed": ["--fp8=hybrid", "--fp8_recipe=delayed", "--fp8_amax_history_len=16", "--fp8_amax_compute_algo=max"],
    "blockwise": ["--fp8=e4m3", "--fp8_recipe=blockwise"],
}
OPTIMIZERS = {
    "adamw": ["--optimizer=adam"],
    "muon": ["--optimizer=muon", "--muon_extra_scale_factor=0.2", "--muon_nesterov"],
}


def write_model(folder, shape, tokenizer, length):
    """Writes a config.json with the tokenizer beside it; weights follow from the seed."""
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(tokenizer):
        shutil.copy(os.path.join(tokenizer, name), folder)
    with open(os.path.join(tokenizer, "tokenizer.json")) as file:
        vocabulary = len(json.load(file)["model"]["vocab"])
    kind = ["LlamaForCausalLM", "llama"] if shape != "experts" else ["Qwen3MoeForCausalLM", "qwen3_moe"]
    config = dict(architectures=kind[:1], model_type=kind[1], vocab_size=-(-vocabulary // 128) * 128,
                  max_position_embeddings=length, rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu",
                  tie_word_embeddings=True, **SHAPES[shape])
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)


def name_of(run):
    return run.replace(":", "-").replace("+", "-")


def command(o, model, run):
    optimizer, rate, *products = run.split(":")
    words = [o.megalith, "train", "--stage=pt", "--train_from_scratch", "--finetuning_type=full",
             f"--model_name_or_path={model}", f"--dataset={o.text}", f"--eval_dataset={o.held_out}",
             f"--output_dir={os.path.join(o.out, name_of(run))}", f"--cutoff_len={o.length}",
             f"--per_device_train_batch_size={o.batch}", f"--per_device_eval_batch_size={o.batch}", f"--max_steps={o.steps}",
             "--num_train_epochs=100", f"--learning_rate={rate}", "--lr_scheduler_type=cosine_with_min_lr",
             '--lr_scheduler_kwargs={"min_lr_rate": 0.1}', f"--warmup_steps={max(1, o.steps // 10)}", "--adam_beta2=0.95",
             "--weight_decay=0.1", "--max_grad_norm=1.0", f"--logging_steps={min(10, o.steps)}", "--eval_strategy=steps",
             f"--eval_steps={max(1, o.steps // 8)}", "--save_strategy=no", "--seed=1", "--report_to=none"]
    for recipe, *more in (each.split("+") for each in products):
        words += RECIPES[recipe] + [f"--fp8_{part}" for part in more]
    return words + OPTIMIZERS[optimizer] + ["--bf16", "--cross_entropy_loss_fusion"] + ["--use_cpu"] * (o.device == "cpu")


def execute(o, model, run):
    folder = os.path.join(o.out, name_of(run))
    metrics = os.path.join(folder, "metrics.jsonl")
    if not os.path.exists(os.path.join(folder, "done")):
        shutil.rmtree(folder, ignore_errors=True)
        done = subprocess.run(command(o, model, run), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{run} failed with exit code {done.returncode}:\n{done.stderr[-3000:]}")
        for name in os.listdir(folder):
            if name.endswith(".safetensors"):
                os.remove(os.path.join(folder, name))
        open(os.path.join(folder, "done"), "w").close()
    with open(metrics) as file:
        lines = [json.loads(line) for line in file]
    held_out = {line["step"]: line["eval_loss"] for line in lines if "eval_loss" in line}
    train = [line["loss"] for line in lines if "loss" in line]
    print(json.dumps({"bench": "loss_study", "run": run, "steps": o.steps, "tokens": o.steps * o.batch * o.length,
                      "held_out": held_out, "last_training_losses": sum(train[-5:]) / len(train[-5:])}), flush=True)
    return held_out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True)
    parser.add_argument("--held-out", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--runs", default="adamw:6e-4,muon:6e-4")
    parser.add_argument("--shape", default="medium", choices=SHAPES)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--megalith", default=os.path.join(os.path.dirname(HERE), "build", "release", "bin", "megalith"))
    o = parser.parse_args()
    os.makedirs(o.out, exist_ok=True)
    model = os.path.join(o.out, "model")
    write_model(model, o.shape, o.tokenizer, o.length)
    runs = o.runs.split(",")
    with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        results = dict(zip(runs, pool.map(lambda run: execute(o, model, run), runs)))
    print(f"{'step':>6}" + "".join(f"{run:>14}" for run in runs), file=sys.stderr)
    for step in sorted(set().union(*results.values())):
        print(f"{step:>6}" + "".join(f"{results[run].get(step, float('nan')):>14.4f}" for run in runs), file=sys.stderr)


if __name__ == "__main__":
    main()
