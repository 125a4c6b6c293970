"""The peer of accuracy_study.py: makes its models, and trains them in PyTorch by transformers' code.

  accuracy.py make SHAPE SIZE FOLDER SEED...         model folders FOLDER-SEED with random fp32 weights
  accuracy.py train PROGRAM DEVICE JOB...            JOB: MODEL:DATA, a model folder and a file of rows of token ids

Programs: fp32, autocast (fp32 weights, bf16 products) and bf16 (weights, activations and gradients in bf16, with fp32
main parameters in the optimizer: "pure bf16"). All take the steps of `megalith train` with the words of
accuracy_study.py: AdamW in fp32, gradients clipped to norm 1. The settings of the run come as JSON in ACCURACY_RUN.
Prints one JSON line per job: {"losses": [...]}.
"""
import contextlib
import json
import os
import sys

# This folder has a kernels.py, which transformers would take for a package of that name.
sys.path.pop(0)
for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
    os.environ.setdefault(name, "1")
import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = {"small": 16384, "tiny": 1024}


def settings(shape, size):
    """Returns the configuration of a shape. The small size is for a GPU, the tiny one for a look on a CPU."""
    width, layers, heads, mlp = (512, 8, 8, 1408) if size == "small" else (128, 4, 4, 352)
    head, experts = width // heads, (16 if size == "small" else 8)
    ids = dict(vocab_size=VOCABULARY[size], bos_token_id=0, eos_token_id=0, pad_token_id=None)
    if shape == "gpt2":
        return dict(ids, model_type="gpt2", n_embd=width, n_layer=layers, n_head=heads, n_positions=1024,
                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    common = dict(ids, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=mlp,
                  max_position_embeddings=1024, hidden_act="silu", attention_bias=False)
    if shape == "llama":
        return dict(common, model_type="llama", num_key_value_heads=heads // 2, rms_norm_eps=1e-5,
                    tie_word_embeddings=True)
    if shape == "deepseek_v3":
        return dict(common, model_type="deepseek_v3", num_key_value_heads=heads, rms_norm_eps=1e-6,
                    tie_word_embeddings=False, moe_intermediate_size=width // 2, n_routed_experts=experts,
                    n_shared_experts=1, num_experts_per_tok=4, n_group=4, topk_group=2, first_k_dense_replace=1,
                    norm_topk_prob=True, routed_scaling_factor=2.5, q_lora_rank=width // 2, kv_lora_rank=width // 4,
                    qk_rope_head_dim=head // 2, qk_nope_head_dim=head, v_head_dim=head)
    # Qwen3's heads are wider than hidden_size / heads.
    common.update(num_key_value_heads=heads // 2, rms_norm_eps=1e-6, head_dim=2 * head)
    if shape == "qwen3":
        return dict(common, model_type="qwen3", tie_word_embeddings=True)
    return dict(common, model_type="qwen3_moe", tie_word_embeddings=False, moe_intermediate_size=width // 2,
                num_experts=experts, num_experts_per_tok=4, norm_topk_prob=True, decoder_sparse_step=1)


def make(shape, size, folder, *seeds):
    chosen = settings(shape, size)
    config = AutoConfig.for_model(chosen.pop("model_type"), **chosen)
    for seed in seeds:
        torch.manual_seed(int(seed))
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(f"{folder}-{seed}")


class MainWeights:
    """AdamW in fp32: on the parameters themselves, or on fp32 copies of those in bf16."""

    def __init__(self, model, run):
        self.trained = list(model.parameters())
        self.main = [p if p.dtype == torch.float32 else p.detach().float().clone() for p in self.trained]
        # As in HF's Trainer, norms and biases do not decay.
        decays = [m for m in self.main if m.dim() > 1]
        others = [m for m in self.main if m.dim() <= 1]
        self.optimizer = torch.optim.AdamW([dict(params=decays, weight_decay=run["weight_decay"]),
                                            dict(params=others, weight_decay=0.0)],
                                           lr=run["learning_rate"], betas=(0.9, run["beta2"]), eps=1e-8)
        # As HF's constant_with_warmup, whose first step has the rate 0.
        self.rate = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, step / run["warmup"]))

    @torch.no_grad()
    def step(self):
        for p, main in zip(self.trained, self.main):
            if main is not p and p.grad is not None:
                main.grad, p.grad = p.grad.float(), None
        # Gradients are clipped as fp32 numbers: the product with the factor is not rounded to bf16.
        torch.nn.utils.clip_grad_norm_(self.main, 1.0)
        self.optimizer.step()
        self.rate.step()
        for p, main in zip(self.trained, self.main):
            if main is not p:
                p.copy_(main)
            p.grad = main.grad = None


def load(folder, program):
    dtype = torch.bfloat16 if program == "bf16" else torch.float32
    config = AutoConfig.from_pretrained(folder)
    config.use_cache = False
    # PyTorch's grouped product takes bf16 alone; the loop over experts is exact in every type.
    return AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=dtype, attn_implementation="sdpa",
                                                experts_implementation="eager")


def losses(program, device, folder, data, run):
    model = load(folder, program).to(device).train()
    optimizer, taken = MainWeights(model, run), []
    with open(data) as file:
        rows = torch.tensor([json.loads(line)["input_ids"] for line in file])
    products = contextlib.nullcontext
    if program == "autocast":
        products = lambda: torch.autocast(device, dtype=torch.bfloat16)
    for batch in rows.view(run["steps"], run["batch"], -1).to(device):
        with products():
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        taken.append(loss.detach().float())
    return torch.stack(taken).tolist()


def main():
    if sys.argv[1] == "make":
        return make(*sys.argv[2:])
    program, device, run = sys.argv[2], sys.argv[3], json.loads(os.environ["ACCURACY_RUN"])
    torch.set_num_threads(run["threads"])
    for job in sys.argv[4:]:
        folder, data = job.split(":")
        print(json.dumps(dict(losses=losses(program, device, folder, data, run))), flush=True)


main()
