"""Makes the checkpoints of other programs in this folder: tiny random models, saved by the programs themselves.

    python tests/data/foreign/make_foreign.py

Made with torch 2.11, transformers 5.22 and megatron-core 0.16.1, on CPUs over Gloo.

    qwen2/ qwen3_moe/            the model as transformers saves it: what converting has to give, bit for bit
    qwen2_dcp/                   torch.distributed.checkpoint, names of transformers after "model.", with an optimizer
    qwen2_torch_dist/            Megatron-Core's dist_checkpointing, tp 2, pp 2
    qwen2_ranks/iter_0000003/    one file per rank, as Megatron-LM's checkpointing.py writes it: tp 2, pp 2
    qwen3_moe_torch_dist/        ep 2
    qwen3_moe_ranks/             ep 2, in the folders of mcore_adapter
    qwen2_vpp_torch_dist/, qwen2_vpp_ranks/                  pp 2, two chunks per rank
    deepseek_v3/                 latent attention, one dense layer, one with experts; and a layer of multi-token prediction,
                                 which transformers does not have, with the names of DeepSeek's own files
    deepseek_v3_torch_dist/, deepseek_v3_ranks/              tp 2, ep 2, etp 1

and with the state of AdamW after two steps of the model qwen2 on adam_ids(), at a constant rate of 0.01:

    qwen2_adam_fsdp/             torch.distributed.checkpoint of torch.distributed.checkpoint.state_dict
    qwen2_adam_torch_dist/       Megatron-Core, tp 2, the optimizer that is not distributed
    qwen2_adam_reshardable/      bf16, dp 2, the distributed optimizer, fully_reshardable
    qwen2_adam_flat/             the same, dp_reshardable
    qwen2_adam_next/             the model of qwen2_adam_fsdp after a third step

Before it saves, this script runs Megatron-Core's model and compares its logits with those of transformers, so that the
weights are those of the same model.
"""

import argparse
import contextlib
import json
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
    elif kind == "deepseek_v3":
        common["num_key_value_heads"] = 4
        config = transformers.DeepseekV3Config(
            num_hidden_layers=2, first_k_dense_replace=1, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
            moe_intermediate_size=8, n_group=2, topk_group=1, routed_scaling_factor=2.5, q_lora_rank=12, kv_lora_rank=8,
            qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5, num_nextn_predict_layers=0, **common,
        )
        model = transformers.DeepseekV3ForCausalLM(config)
        torch.nn.init.normal_(model.model.layers[1].mlp.gate.e_score_correction_bias, std=0.3)
    else:
        config = transformers.Qwen3MoeConfig(
            num_hidden_layers=2, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
            norm_topk_prob=True, **common,
        )
        model = transformers.Qwen3MoeForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def mtp_tensors(main):
    """A layer of multi-token prediction like layer 1 of the model `main`, under the names of DeepSeek's files."""
    torch.manual_seed(8)
    layer = {name: tensor for name, tensor in main.items() if ".layers.1." in name}
    more = {"enorm.weight": (16,), "hnorm.weight": (16,), "eh_proj.weight": (16, 32), "shared_head.norm.weight": (16,)}
    shapes = {name.replace(".1.", ".2.", 1): tensor.shape for name, tensor in layer.items()}
    shapes |= {f"model.layers.2.{name}": shape for name, shape in more.items()}
    copies = {"embed_tokens.weight": "model.embed_tokens.weight", "shared_head.head.weight": "lm_head.weight"}
    return {name: 0.3 * torch.randn(shape) for name, shape in shapes.items()} | {
        f"model.layers.2.{name}": main[source].clone() for name, source in copies.items()
    }


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
    if words[0] == "mtp":
        layer = f"model.layers.{config.num_layers + int(words[2])}."
        if words[3] == "mtp_model_layer" or words[3] == "transformer_layer":
            words = [*words[:3], *words[4:]]
            part = ".".join(words[3:])
    plain = {
        "enorm.weight": "enorm.weight",
        "hnorm.weight": "hnorm.weight",
        "eh_proj.weight": "eh_proj.weight",
        "final_layernorm.weight": "shared_head.norm.weight",
        "self_attention.linear_q_down_proj.weight": "self_attn.q_a_proj.weight",
        "self_attention.linear_q_up_proj.weight": "self_attn.q_b_proj.weight",
        "self_attention.linear_kv_down_proj.weight": "self_attn.kv_a_proj_with_mqa.weight",
        "self_attention.linear_kv_up_proj.weight": "self_attn.kv_b_proj.weight",
        "self_attention.kv_layernorm.weight": "self_attn.kv_a_layernorm.weight",
        "mlp.shared_experts.linear_fc2.weight": "mlp.shared_experts.down_proj.weight",
        "mlp.router.expert_bias": "mlp.gate.e_score_correction_bias",
        "input_layernorm.weight": "input_layernorm.weight",
        "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
        "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
        "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
        "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
        "mlp.linear_fc2.weight": "mlp.down_proj.weight",
        "mlp.router.weight": "mlp.gate.weight",
    }
    if config.multi_latent_attention:
        plain["self_attention.q_layernorm.weight"] = "self_attn.q_a_layernorm.weight"
    if part in plain:
        return hf[layer + plain[part]]
    if part.startswith("self_attention.linear_qkv."):
        kind = words[-1]
        groups = config.num_query_groups
        q, k, v = (hf[f"{layer}self_attn.{x}_proj.{kind}"] for x in "qkv")
        return torch.cat([t.reshape(groups, -1, *t.shape[1:]) for t in (q, k, v)], 1).reshape(-1, *q.shape[1:])
    if part in ("mlp.linear_fc1.weight", "mlp.shared_experts.linear_fc1.weight"):
        block = layer + part.removesuffix("linear_fc1.weight")
        return torch.cat([hf[block + "gate_proj.weight"], hf[block + "up_proj.weight"]])
    if part.startswith("mlp.experts.local_experts."):
        expert = f"{layer}mlp.experts.{words[6]}."
        if words[7] == "linear_fc2":
            return hf[expert + "down_proj.weight"]
        return torch.cat([hf[expert + "gate_proj.weight"], hf[expert + "up_proj.weight"]])
    raise KeyError(name)


def fill(model, hf, config, state):
    """Sets the parameters of this rank's part of the model. state: its ranks and first layer."""
    biases = [each for each in model.named_buffers() if each[0].endswith("expert_bias")]
    for name, parameter in [*model.named_parameters(), *biases]:
        words = name.split(".")
        if words[:2] == ["decoder", "layers"]:
            words[2] = str(int(words[2]) + state["first_layer"])
        if "local_experts" in words:
            number = words.index("local_experts") + 1
            words[number] = str(int(words[number]) + state["first_expert"])
        whole = whole_tensor(hf, ".".join(words), config)
        tp, rank = state["tp"], state["tp_rank"]
        if whole.shape != parameter.shape:
            dim = 0 if whole.shape[0] != parameter.shape[0] else 1
            if "linear_fc1" in words:
                whole = torch.cat([half.chunk(tp)[rank] for half in whole.chunk(2)])
            else:
                whole = whole.chunk(tp, dim)[rank]
        parameter.data.copy_(whole)


def model_settings(kind):
    """The sizes of Megatron-Core's model."""
    common = dict(hidden_size=16, num_attention_heads=4, ffn_hidden_size=24, layernorm_epsilon=1e-6)
    experts = dict(num_moe_experts=4, moe_router_topk=2, moe_ffn_hidden_size=8, moe_token_dispatcher_type="allgather",
                   moe_router_load_balancing_type="none")
    if kind == "qwen2":
        return dict(num_layers=4, num_query_groups=2, kv_channels=4, add_qkv_bias=True, **common)
    if kind == "qwen3_moe":
        return dict(num_layers=2, num_query_groups=2, kv_channels=8, qk_layernorm=True, moe_router_pre_softmax=False,
                    **experts, **common)
    return dict(
        num_layers=2, multi_latent_attention=True, q_lora_rank=12, kv_lora_rank=8, qk_head_dim=6, qk_pos_emb_head_dim=4,
        v_head_dim=5, rope_type="rope", qk_layernorm=True, moe_layer_freq=[0, 1], moe_shared_expert_intermediate_size=8,
        moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True, moe_router_topk_scaling_factor=2.5,
        moe_router_num_groups=2, moe_router_group_topk=1, mtp_num_layers=1, **experts, **common,
    )


class LatentDotProduct(torch.nn.Module):
    """The product of latent attention, which Megatron-Core has in Transformer Engine alone; it holds no weights."""

    def __init__(self, softmax_scale, **_):
        super().__init__()
        self.scale = softmax_scale

    def forward(self, query, key, value, *_, **__):  # [t, b, heads, size]
        q, k, v = (each.permute(1, 2, 0, 3) for each in (query, key, value))
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return found.permute(2, 0, 1, 3).flatten(2)


def megatron_model(kind, tp, pp, ep, vpp=None):
    """Returns the chunks of this rank's model, its configuration, and its place: ranks and first layer."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel, gpt_layer_specs
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig, multi_latent_attention
    from megatron.core.transformer.moe import moe_utils

    moe_utils.te_general_gemm = None  # of Transformer Engine, which is not there
    CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()  # its random numbers need a GPU
    parallel_state.initialize_model_parallel(
        tp, pp, vpp, expert_model_parallel_size=ep, expert_tensor_parallel_size=1 if ep > 1 else None
    )
    latent = kind == "deepseek_v3"
    config = (MLATransformerConfig if latent else TransformerConfig)(
        **model_settings(kind),
        gated_linear_unit=True, activation_func=torch.nn.functional.silu,
        add_bias_linear=False, normalization="RMSNorm",
        hidden_dropout=0.0, attention_dropout=0.0, use_cpu_initialization=True, bias_activation_fusion=False,
        masked_softmax_fusion=False, persist_layer_norm=False, pipeline_dtype=torch.float32,
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=ep,
        virtual_pipeline_model_parallel_size=vpp, expert_tensor_parallel_size=1 if ep > 1 else None,
    )
    if latent:
        gpt_layer_specs.LocalSpecProvider.core_attention = lambda _: LatentDotProduct
        multi_latent_attention.HAVE_TE = False  # a stand-in passes for it
        spec = gpt_layer_specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False)
        more = dict(mtp_block_spec=gpt_layer_specs.get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False))
    else:
        spec = gpt_layer_specs.get_gpt_layer_local_spec(
            num_experts=config.num_moe_experts, qk_layernorm=config.qk_layernorm, normalization="RMSNorm"
        )
        more = {}
    pp_rank = parallel_state.get_pipeline_model_parallel_rank()
    state = dict(
        tp=tp, tp_rank=parallel_state.get_tensor_model_parallel_rank(), pp_rank=pp_rank,
        ep_rank=parallel_state.get_expert_model_parallel_rank(),
        first_expert=parallel_state.get_expert_model_parallel_rank() * 4 // ep,
    )
    chunks = []
    for chunk in range(vpp or 1):
        place = dict(ignore_virtual=False, vp_stage=chunk if vpp else None)
        model = GPTModel(
            config, spec, vocab_size=PADDED, max_sequence_length=64, position_embedding_type="rope", rotary_base=10000,
            share_embeddings_and_output_weights=False,
            pre_process=parallel_state.is_pipeline_first_stage(**place),
            post_process=parallel_state.is_pipeline_last_stage(**place), vp_stage=place["vp_stage"], **more,
        )
        first_layer = (chunk * pp + pp_rank) * config.num_layers // (pp * (vpp or 1))
        fill(model, saved_tensors(kind), config, state | {"first_layer": first_layer})
        chunks.append(model.eval())
    return chunks, config, state


def check_logits(kind, model):
    model.mtp_process, model.config.mtp_num_layers = False, None  # that layer gives losses only
    ids = torch.arange(3, 15)[None] * 3
    mask = torch.triu(torch.ones(12, 12), 1).bool()[None, None]
    with torch.no_grad():
        ours = model(ids, torch.arange(12)[None], mask)[..., :VOCAB]
        theirs = hf_model(kind)(input_ids=ids).logits
    error = (ours - theirs).abs().max() / theirs.abs().max()
    assert error < 1e-5, (kind, error)
    print(kind, "logits agree:", float(error))


def run(rank, world, port, kind, tp, pp, ep, vpp=None):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    chunks, config, state = megatron_model(kind, tp, pp, ep, vpp)
    if world == 1:
        return check_logits(kind, chunks[0])
    from megatron.core import dist_checkpointing

    made = kind + ("_vpp" if vpp else "")
    # The keys of Megatron-LM's generate_state_dict.
    keys = [f"model{chunk}" if vpp else "model" for chunk in range(len(chunks))]
    folder = f"{made}_torch_dist"
    if rank == 0:
        os.makedirs(folder)
    dist.barrier()
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

    sharded = {key: chunk.sharded_state_dict() for key, chunk in zip(keys, chunks)}
    dist_checkpointing.save({**sharded, "iteration": 3}, folder, TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1))
    # The layout of Megatron-LM's checkpointing.get_checkpoint_name, and what its generate_state_dict saves.
    name = f"mp_rank_{state['tp_rank']:02d}"
    if pp > 1:
        name += f"_{state['pp_rank']:03d}"
    if ep > 1:
        name += f"_{state['ep_rank']:03d}"
    iteration = 1 if kind == "qwen3_moe" else 3
    path = os.path.join(f"{made}_ranks", f"iter_{iteration:07d}", name)
    os.makedirs(path)
    saved = {key: chunk.state_dict_for_save_checkpoint() for key, chunk in zip(keys, chunks)}
    if made == "qwen2":
        saved.update(
            args=argparse.Namespace(tensor_model_parallel_size=tp, params_dtype=torch.float32, layer=config.normalization),
            iteration=3, checkpoint_version=3.0, optimizer={"param_groups": [{"lr": 1e-3}], "state": torch.ones(2)},
        )
    torch.save(saved, os.path.join(path, "model_optim_rng.pt"))
    if rank == 0:
        with open(os.path.join(f"{made}_ranks", "latest_checkpointed_iteration.txt"), "w") as file:
            file.write(str(iteration))
    dist.barrier()
    dist.destroy_process_group()


def save_hf(kind):
    model = hf_model(kind)
    folder = kind
    model.save_pretrained(folder)
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))
    if kind == "deepseek_v3":
        add_mtp(folder)
    return model


def add_mtp(folder):
    from safetensors.torch import save_file

    main = saved_tensors(folder)
    save_file({**main, **mtp_tensors(main)}, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    path = os.path.join(folder, "config.json")
    with open(path) as file:
        config = json.load(file)
    config["num_nextn_predict_layers"] = 1
    with open(path, "w") as file:
        json.dump(config, file, indent=2)


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


# ---- Optimizers ----

ADAM = dict(lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


def adam_ids():
    """Two texts, which every step sees."""
    return torch.stack([torch.arange(12) * 3 + 3, (torch.arange(12) * 7 + 1) % VOCAB])


def save_adam():
    """Trains the model of transformers: two steps, saved with their state, and a third one."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = hf_model("qwen2").train()
    decays = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([dict(params=decays), dict(params=others, weight_decay=0.0)], **ADAM)
    for step in range(3):
        if step == 2:
            weights, state = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optim": state}, checkpoint_id="qwen2_adam_fsdp")
        optimizer.zero_grad()
        model(input_ids=adam_ids(), labels=adam_ids()).loss.backward()
        optimizer.step()
    model.save_pretrained("qwen2_adam_next")
    for name in ("config.json", "generation_config.json"):
        if os.path.exists(os.path.join("qwen2_adam_next", name)):
            os.remove(os.path.join("qwen2_adam_next", name))


def on_cpu(make):
    def made(*args, **named):
        if str(named.get("device", "")).startswith("cuda"):
            named["device"] = "cpu"
        return make(*args, **named)

    return made


def pretend_cuda():
    """Megatron-Core's optimizers ask for tensors on a GPU, and for their names."""
    for name in ("tensor", "zeros", "empty", "full", "zeros_like", "empty_like"):
        setattr(torch, name, on_cpu(getattr(torch, name)))
    real = torch.Tensor.type

    def named(self, *args, **kwargs):
        result = real(self, *args, **kwargs)
        return result.replace("torch.", "torch.cuda.") if isinstance(result, str) else result

    torch.Tensor.type = named
    torch.Tensor.cuda = lambda self, *_, **__: self


def run_adam(rank, world, port, name, tp, kind):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    pretend_cuda()
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    (model,), config, _ = megatron_model("qwen2", tp, 1, 1)
    shards = kind != "plain"
    half = dict(bf16=True, params_dtype=torch.bfloat16) if shards else {}
    if shards:
        config.bf16, config.params_dtype, model = True, torch.bfloat16, model.bfloat16()
    model.train()
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=shards), model)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam", lr=ADAM["lr"], adam_beta1=ADAM["betas"][0], adam_beta2=ADAM["betas"][1],
            adam_eps=ADAM["eps"], weight_decay=ADAM["weight_decay"], clip_grad=0.0, use_distributed_optimizer=shards,
            **half,
        ),
        [wrapped],
    )
    for group in optimizer.param_groups:  # as OptimizerParamScheduler sets them
        group["lr"] = ADAM["lr"]
        group["weight_decay"] = ADAM["weight_decay"] * group["wd_mult"]
    ids = adam_ids()
    mask = torch.triu(torch.ones(12, 12), 1).bool()[None, None]
    for _ in range(2):
        wrapped.zero_grad_buffer()
        optimizer.zero_grad()  # otherwise a gradient is still the buffer, and would be added to itself
        logits = wrapped(ids, torch.arange(12).expand(2, 12), mask)
        if tp > 1:
            from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

            logits = gather_from_tensor_model_parallel_region(logits)
        # The program of transformers has no padding of the vocabulary, so it takes no part here either.
        logits = logits[:, :-1, :VOCAB].float().flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten()).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.main_grad.add_(parameter.grad)
                parameter.grad = None
        optimizer.step()
    folder = f"qwen2_adam_{name}"
    if rank == 0:
        os.makedirs(folder)
    dist.barrier()
    weights = model.sharded_state_dict()
    metadata = {"distrib_optim_sharding_type": kind} if shards else None
    state = {**weights, "optimizer": optimizer.sharded_state_dict(weights, metadata=metadata), "iteration": 2}
    dist_checkpointing.save(state, folder, TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1))
    dist.barrier()
    dist.destroy_process_group()


# Of run_adam: ranks, name of the folder, tp, kind of state.
ADAM_STEPS = {
    "adam": (2, "torch_dist", 2, "plain"),
    "adam_reshardable": (2, "reshardable", 1, "fully_reshardable"),
    "adam_flat": (2, "flat", 1, "dp_reshardable"),
}

STEPS = {
    "dense": (4, "qwen2", 2, 2, 1),
    "experts": (2, "qwen3_moe", 1, 1, 2),
    "chunks": (2, "qwen2", 1, 2, 1, 2),
    "latent": (2, "deepseek_v3", 2, 1, 2),
    "dense_logits": (1, "qwen2", 1, 1, 1),
    "experts_logits": (1, "qwen3_moe", 1, 1, 1),
    "latent_logits": (1, "deepseek_v3", 1, 1, 1),
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
    steps = sys.argv[1:] or ["models", "fsdp", *STEPS, *ADAM_STEPS]
    for number, step in enumerate(steps):
        if step == "models":
            for name in filter(os.path.isdir, os.listdir()):
                shutil.rmtree(name)
            for kind in ("qwen2", "qwen3_moe", "deepseek_v3"):
                save_hf(kind)
            save_dcp()
            continue
        if step == "fsdp":
            save_adam()
            continue
        world, *how = (STEPS | ADAM_STEPS)[step]
        mp.start_processes(run_adam if step in ADAM_STEPS else run, args=(world, 29600 + number, *how), nprocs=world, start_method="fork")


if __name__ == "__main__":
    sys.exit(main())
