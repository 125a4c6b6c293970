"""Makes the checkpoints of other programs in this folder: tiny random models, saved by the programs themselves.

    python tests/data/foreign/make_foreign.py

Made with torch 2.11, transformers 5.22 and megatron-core 0.16.1, on CPUs over Gloo.

    qwen2/ qwen3_moe/            the model as transformers saves it: what converting has to give, bit for bit
    qwen2_dcp/                   torch.distributed.checkpoint, names of transformers after "model.", with an optimizer
    qwen2_torch_dist/            Megatron-Core's dist_checkpointing, tp 2, pp 2
    qwen2_ranks/iter_0000003/    one file per rank, as Megatron-LM's checkpointing.py writes it: tp 2, pp 2
    qwen3_moe_torch_dist/        ep 2
    qwen3_moe_ranks/             ep 2, in the folders of mcore_adapter

Before it saves, this script runs Megatron-Core's model and compares its logits with those of transformers, so that the
weights are those of the same model.
"""

import argparse
import contextlib
import os
import shutil
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB, PADDED = 50, 64  # Megatron fills the vocabulary up

torch.cuda.synchronize = lambda *_: None
torch.cuda.current_device = lambda: "cpu"


def hf_model(kind):
    import transformers

    common = dict(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, rope_theta=10000.0, tie_word_embeddings=False, rms_norm_eps=1e-6,
    )
    torch.manual_seed(7)
    if kind == "qwen2":
        config = transformers.Qwen2Config(num_hidden_layers=4, **common)
        model = transformers.Qwen2ForCausalLM(config)
    else:
        config = transformers.Qwen3MoeConfig(
            num_hidden_layers=2, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
            norm_topk_prob=True, **common,
        )
        model = transformers.Qwen3MoeForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def saved_tensors(kind):
    from safetensors.torch import load_file

    return load_file(os.path.join(kind, "model.safetensors"))


def whole_tensor(hf, name, config):
    """The tensor of Megatron-Core, whole, out of those of transformers."""
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        source = hf["model.embed_tokens.weight" if name.startswith("embedding") else "lm_head.weight"]
        return torch.cat([source, torch.zeros(PADDED - VOCAB, source.shape[1])])
    if name == "decoder.final_layernorm.weight":
        return hf["model.norm.weight"]
    words = name.split(".")
    layer, part = f"model.layers.{words[2]}.", ".".join(words[3:])
    plain = {
        "input_layernorm.weight": "input_layernorm.weight",
        "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
        "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
        "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
        "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
        "mlp.linear_fc2.weight": "mlp.down_proj.weight",
        "mlp.router.weight": "mlp.gate.weight",
    }
    if part in plain:
        return hf[layer + plain[part]]
    if part.startswith("self_attention.linear_qkv."):
        kind = words[-1]
        groups = config.num_query_groups
        q, k, v = (hf[f"{layer}self_attn.{x}_proj.{kind}"] for x in "qkv")
        return torch.cat([t.reshape(groups, -1, *t.shape[1:]) for t in (q, k, v)], 1).reshape(-1, *q.shape[1:])
    if part == "mlp.linear_fc1.weight":
        return torch.cat([hf[layer + "mlp.gate_proj.weight"], hf[layer + "mlp.up_proj.weight"]])
    if part.startswith("mlp.experts.local_experts."):
        expert = f"{layer}mlp.experts.{words[6]}."
        if words[7] == "linear_fc2":
            return hf[expert + "down_proj.weight"]
        return torch.cat([hf[expert + "gate_proj.weight"], hf[expert + "up_proj.weight"]])
    raise KeyError(name)


def fill(model, hf, config, state):
    """Sets the parameters of this rank's part of the model. state: its ranks and first layer."""
    for name, parameter in model.named_parameters():
        words = name.split(".")
        if "layers" in words:
            words[2] = str(int(words[2]) + state["first_layer"])
        if "local_experts" in words:
            words[6] = str(int(words[6]) + state["first_expert"])
        whole = whole_tensor(hf, ".".join(words), config)
        tp, rank = state["tp"], state["tp_rank"]
        if whole.shape != parameter.shape:
            dim = 0 if whole.shape[0] != parameter.shape[0] else 1
            if "linear_fc1" in words:
                whole = torch.cat([half.chunk(tp)[rank] for half in whole.chunk(2)])
            else:
                whole = whole.chunk(tp, dim)[rank]
        parameter.data.copy_(whole)


def megatron_model(kind, tp, pp, ep):
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.moe import moe_utils

    moe_utils.te_general_gemm = None  # of Transformer Engine, which is not there
    CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()  # its random numbers need a GPU
    parallel_state.initialize_model_parallel(tp, pp, expert_model_parallel_size=ep)
    moe = kind == "qwen3_moe"
    config = TransformerConfig(
        num_layers=2 if moe else 4, hidden_size=16, num_attention_heads=4, num_query_groups=2,
        kv_channels=8 if moe else 4, ffn_hidden_size=24, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
        add_bias_linear=False, add_qkv_bias=not moe, qk_layernorm=moe, normalization="RMSNorm", layernorm_epsilon=1e-6,
        hidden_dropout=0.0, attention_dropout=0.0, use_cpu_initialization=True, bias_activation_fusion=False,
        masked_softmax_fusion=False, persist_layer_norm=False, pipeline_dtype=torch.float32,
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=ep,
        **(dict(num_moe_experts=4, moe_router_topk=2, moe_ffn_hidden_size=8, moe_router_pre_softmax=False,
                moe_token_dispatcher_type="allgather", moe_router_load_balancing_type="none") if moe else {}),
    )
    spec = get_gpt_layer_local_spec(num_experts=4 if moe else None, qk_layernorm=moe, normalization="RMSNorm")
    model = GPTModel(
        config, spec, vocab_size=PADDED, max_sequence_length=64, position_embedding_type="rope", rotary_base=10000,
        share_embeddings_and_output_weights=False,
        pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
    )
    state = dict(
        tp=tp, tp_rank=parallel_state.get_tensor_model_parallel_rank(),
        pp_rank=parallel_state.get_pipeline_model_parallel_rank(),
        ep_rank=parallel_state.get_expert_model_parallel_rank(),
        first_layer=parallel_state.get_pipeline_model_parallel_rank() * config.num_layers // pp,
        first_expert=parallel_state.get_expert_model_parallel_rank() * 4 // ep,
    )
    fill(model, saved_tensors(kind), config, state)
    return model.eval(), config, state


def check_logits(kind, model):
    ids = torch.arange(3, 15)[None] * 3
    mask = torch.triu(torch.ones(12, 12), 1).bool()[None, None]
    with torch.no_grad():
        ours = model(ids, torch.arange(12)[None], mask)[..., :VOCAB]
        theirs = hf_model(kind)(input_ids=ids).logits
    error = (ours - theirs).abs().max() / theirs.abs().max()
    assert error < 1e-5, (kind, error)
    print(kind, "logits agree:", float(error))


def run(rank, world, port, kind, tp, pp, ep):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model, config, state = megatron_model(kind, tp, pp, ep)
    if world == 1:
        return check_logits(kind, model)
    from megatron.core import dist_checkpointing

    folder = f"{kind}_torch_dist"
    if rank == 0:
        os.makedirs(folder)
    dist.barrier()
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

    sharded = model.sharded_state_dict()
    dist_checkpointing.save({**sharded, "iteration": 3}, folder, TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1))
    # The layout of Megatron-LM's checkpointing.get_checkpoint_name, and what its generate_state_dict saves.
    name = f"mp_rank_{state['tp_rank']:02d}"
    if pp > 1:
        name += f"_{state['pp_rank']:03d}"
    if ep > 1:
        name += f"_{state['ep_rank']:03d}"
    iteration = 1 if kind == "qwen3_moe" else 3
    path = os.path.join(f"{kind}_ranks", f"iter_{iteration:07d}", name)
    os.makedirs(path)
    saved = {"model": model.state_dict_for_save_checkpoint()}
    if kind == "qwen2":
        saved.update(
            args=argparse.Namespace(tensor_model_parallel_size=tp, params_dtype=torch.float32, layer=config.normalization),
            iteration=3, checkpoint_version=3.0, optimizer={"param_groups": [{"lr": 1e-3}], "state": torch.ones(2)},
        )
    torch.save(saved, os.path.join(path, "model_optim_rng.pt"))
    if rank == 0:
        with open(os.path.join(f"{kind}_ranks", "latest_checkpointed_iteration.txt"), "w") as file:
            file.write(str(iteration))
    dist.barrier()
    dist.destroy_process_group()


def save_hf(kind):
    model = hf_model(kind)
    folder = kind
    model.save_pretrained(folder)
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))
    return model


def save_dcp():
    import torch.distributed.checkpoint as dcp

    model = hf_model("qwen2")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": {"momentum": optimizer.state_dict()["state"][0]["momentum_buffer"]},
             "step": 5}
    dcp.save(state, checkpoint_id="qwen2_dcp")


STEPS = {
    "dense": (4, "qwen2", 2, 2, 1),
    "experts": (2, "qwen3_moe", 1, 1, 2),
    "dense_logits": (1, "qwen2", 1, 1, 1),
    "experts_logits": (1, "qwen3_moe", 1, 1, 1),
}


def main():
    """Runs the steps named by the arguments; all of them without any."""
    import megatron.core.dist_checkpointing.strategies.filesystem_async as writer
    import megatron.core.models.gpt  # noqa: F401, imported once for all ranks
    import transformers  # noqa: F401

    os.chdir(HERE)  # checkpoints record the path that they are given
    torch.set_num_threads(1)
    queues = mp.get_context("fork")
    writer._get_write_results_queue = lambda: queues.Manager().Queue()
    steps = sys.argv[1:] or ["models", *STEPS]
    for number, step in enumerate(steps):
        if step == "models":
            for name in filter(os.path.isdir, os.listdir()):
                shutil.rmtree(name)
            for kind in ("qwen2", "qwen3_moe"):
                save_hf(kind)
            save_dcp()
            continue
        world, *how = STEPS[step]
        mp.start_processes(run, args=(world, 29600 + number, *how), nprocs=world, start_method="fork")


if __name__ == "__main__":
    sys.exit(main())
