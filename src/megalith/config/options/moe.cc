#include "megalith/config/option_list_internal.h"

namespace megalith::config {
namespace {

void add_experts(OptionList& list) {
  auto moe = list.part(&TrainingArguments::moe);
  moe.add("num_experts", &MoeConfig::num_experts, "experts a MoE layer (none: dense)").at_least(1).implemented();
  moe.add("moe_layer_freq", &MoeConfig::layer_freq, "every n-th layer is MoE, or a list such as ([1]*3+[0]*2)")
      .pretrain_default("1")
      .implemented();
  moe.add("moe_ffn_hidden_size", &MoeConfig::ffn_hidden_size, "width of an expert (none: ffn_hidden_size)")
      .at_least(1)
      .implemented();
  moe.add("moe_shared_expert_intermediate_size", &MoeConfig::shared_expert_intermediate_size,
          "width of all shared experts together (none: no shared expert)")
      .at_least(1)
      .implemented();
  moe.add("moe_shared_expert_gate", &MoeConfig::shared_expert_gate, "sigmoid gate on the shared expert")
      .pretrain_default(false)
      .implemented();
  moe.add("moe_shared_expert_overlap", &MoeConfig::shared_expert_overlap,
          "run the shared expert beside the token exchange; alltoall only")
      .implemented();
  moe.add("moe_token_dispatcher_type", &MoeConfig::token_dispatcher, "how tokens reach their experts")
      .refuse({"flex"}, "the flex dispatcher needs DeepEP; use alltoall")
      .implemented();
  moe.add("moe_grouped_gemm", &MoeConfig::grouped_gemm, "one kernel for all local experts")
      .pretrain_default(false)
      .no_effect("the experts of a rank are always computed together");
  moe.add("moe_expert_capacity_factor", &MoeConfig::expert_capacity_factor,
          "rows of an expert over the fair share; negative or none: nothing is dropped")
      .implemented();
  moe.add("moe_pad_expert_input_to_capacity", &MoeConfig::pad_expert_input_to_capacity,
          "always exactly that many rows; needs moe_expert_capacity_factor")
      .pretrain_default(false)
      .implemented();
  moe.add("moe_token_drop_policy", &MoeConfig::token_drop_policy, "drop the smallest weights or the last positions")
      .pretrain_default(DropPolicy::kProbs)
      .implemented();
  moe.add("moe_enable_routing_replay", &MoeConfig::enable_routing_replay, "record routing decisions and replay them")
      .implemented();
}

void add_router(OptionList& list) {
  auto router = list.part(&TrainingArguments::router);
  router.add("moe_router_topk", &RouterConfig::topk, "experts a token").at_least(1).pretrain_default(2).implemented();
  router
      .add("moe_router_load_balancing_type", &RouterConfig::load_balancing_type,
           "how experts are kept equally busy; several with one coefficient each")
      .choices({"aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"})
      .pretrain_default({"aux_loss"})
      .implemented();
  router.add("moe_aux_loss_coeff", &RouterConfig::aux_loss_coeff, "weight of the balancing loss, one a type")
      .alias({"moe_aux_loss_coef"})
      .at_least(0)
      .pretrain_default({0.0})
      .implemented();
  router.add("moe_z_loss_coeff", &RouterConfig::z_loss_coeff, "weight of the router-logit penalty")
      .at_least(0)
      .implemented();
  router.add("moe_router_score_function", &RouterConfig::score_function, "softmax or sigmoid")
      .pretrain_default(ScoreFunction::kSoftmax)
      .implemented();
  router.add("moe_router_dtype", &RouterConfig::dtype, "number format of the router (none: fp32 from 32 experts on)")
      .implemented();
  router.add("moe_router_pre_softmax", &RouterConfig::pre_softmax, "softmax over all experts before choosing")
      .pretrain_default(false)
      .implemented();
  router.add("moe_router_num_groups", &RouterConfig::num_groups, "group-limited routing: groups")
      .at_least(1)
      .implemented();
  router.add("moe_router_group_topk", &RouterConfig::group_topk, "group-limited routing: groups a token may use")
      .at_least(1)
      .implemented();
  router.add("moe_router_topk_scaling_factor", &RouterConfig::topk_scaling_factor, "multiplies the chosen weights")
      .implemented();
  router
      .add("moe_router_enable_expert_bias", &RouterConfig::enable_expert_bias,
           "balance by a bias on the choice in place of a loss")
      .pretrain_default(false)
      .implemented();
  router.add("moe_router_bias_update_rate", &RouterConfig::bias_update_rate, "step of that bias")
      .pretrain_default(1e-3)
      .implemented();
  router.add("moe_input_jitter_eps", &RouterConfig::input_jitter_eps, "noise on the router's input")
      .at_least(0)
      .implemented();
}

void add_recompute(OptionList& list) {
  auto recompute = list.part(&TrainingArguments::recompute);
  recompute.add("recompute_granularity", &RecomputeConfig::granularity, "full layers or selected modules")
      .implemented();
  recompute.add("recompute_method", &RecomputeConfig::method, "with full: groups of n layers, or the first n")
      .implemented();
  recompute.add("recompute_num_layers", &RecomputeConfig::num_layers, "that n").at_least(1).implemented();
  recompute
      .add("recompute_modules", &RecomputeConfig::modules, "with selective: what is computed twice (none: core_attn)")
      .choices({"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "mlp_act", "moe", "shared_experts"})
      .commas()
      .implemented();
  recompute.add("moe_layer_recompute", &RecomputeConfig::moe_layer_recompute, "compute MoE layers twice").implemented();
  recompute
      .add("gradient_checkpointing", &RecomputeConfig::gradient_checkpointing,
           "without recompute_granularity the same as full, uniform, 1")
      .train_only()
      .implemented();
  recompute
      .add("recompute_activations", &RecomputeConfig::recompute_activations,
           "the same as recompute_granularity selective")
      .pretrain_only()
      .implemented();
  recompute
      .add("distribute_saved_activations", &RecomputeConfig::distribute_saved_activations,
           "split stored layer inputs over tp; full recompute without sequence_parallel")
      .pretrain_only()
      .implemented();
  recompute.add("cpu_offloading", &RecomputeConfig::cpu_offloading, "keep activations in host memory")
      .pretrain_only()
      .planned("gpu");
  recompute.add("cpu_offloading_num_layers", &RecomputeConfig::cpu_offloading_num_layers, "layers so treated")
      .at_least(0)
      .pretrain_only()
      .planned("gpu");
}

void add_fusion(OptionList& list) {
  auto fusion = list.part(&TrainingArguments::fusion);
  fusion
      .add("bias_activation_fusion", &FusionConfig::bias_activation,
           "always one kernel; gpt2 from scratch: GELU by its tanh approximation, as the reference's kernel")
      .negated_by({"no_bias_swiglu_fusion", "no_bias_gelu_fusion"})
      .pretrain_default(true)
      .implemented();
  fusion.add("apply_rope_fusion", &FusionConfig::rope, "rotary embedding in one kernel")
      .negated_by({"no_rope_fusion"})
      .pretrain_default(true)
      .no_effect("rotary embedding is always one kernel");
  fusion
      .add("cross_entropy_loss_fusion", &FusionConfig::cross_entropy_loss,
           "softmax, loss and gradient in one kernel; effective with tp 1")
      .implemented();
  fusion
      .add("gradient_accumulation_fusion", &FusionConfig::gradient_accumulation,
           "weight gradients straight into the fp32 buffer")
      .pretrain_only()
      .no_effect("weight gradients always go straight into the gradient buffer");
  fusion
      .add("cuda_graph_impl", &FusionConfig::cuda_graph_impl,
           "local: forward and backward of micro-batches of equal shape as CUDA graphs; one GPU, no experts")
      .choices({"none", "local", "transformer_engine"})
      .refuse({"transformer_engine"}, "Transformer Engine is not used; use local")
      .implemented();
  fusion
      .add("cuda_graph_scope", &FusionConfig::cuda_graph_scope,
           "what a graph holds: full, a micro-batch's forward and backward; parts of layers are refused")
      .commas()
      .implemented();
  fusion
      .add("cuda_graph_warmup_steps", &FusionConfig::cuda_graph_warmup_steps,
           "steps that run without graphs before the first is recorded")
      .at_least(0)
      .implemented();
}

void add_foreign_memory_settings(OptionList& list) {
  list.no_effect_all("speed or memory only; Megalith chooses by itself", {{"flash_attn", text("auto")},
                                                                          {"attention_backend", text("auto")},
                                                                          {"use_flash_attn", flag()},
                                                                          {"masked_softmax_fusion", flag(true)},
                                                                          {"bias_dropout_fusion", flag(true)},
                                                                          {"persist_layer_norm", flag(true)},
                                                                          {"disable_jit_fuser", flag()},
                                                                          {"use_flashinfer_fused_rope", flag()},
                                                                          {"cross_entropy_fusion_impl", text("native")},
                                                                          {"use_cpu_initialization", opt_flag()},
                                                                          {"perform_initialization", flag(true)},
                                                                          {"compile_warmup", flag()},
                                                                          {"manual_gc", flag()},
                                                                          {"manual_gc_interval", integer(0)},
                                                                          {"manual_gc_eval", flag(true)},
                                                                          {"empty_unused_memory_level", integer(0)},
                                                                          {"torch_empty_cache_steps", opt_integer()},
                                                                          {"upcast_layernorm", flag()},
                                                                          {"upcast_lmhead_output", flag()},
                                                                          {"low_cpu_mem_usage", flag(true)},
                                                                          {"enable_liger_kernel", flag()},
                                                                          {"use_liger_kernel", flag()},
                                                                          {"liger_kernel_config", dict()},
                                                                          {"use_unsloth_gc", flag()},
                                                                          {"offload_folder", text("offload")},
                                                                          {"disable_gradient_checkpointing", flag()},
                                                                          {"use_reentrant_gc", flag(true)},
                                                                          {"gradient_checkpointing_kwargs", dict()},
                                                                          {"use_mcore_models", flag()},
                                                                          {"te_rng_tracker", flag()},
                                                                          {"deterministic_mode", flag()},
                                                                          {"enable_cuda_graph", flag()}});
  list.no_effect("deepspeed", dict(), "Megalith shards with use_distributed_optimizer; a DeepSpeed file is not read");
  list.refused_all("Megalith shards by tp, pp, cp, ep and use_distributed_optimizer",
                   {{"fsdp", opt_text()},
                    {"fsdp_config", dict()},
                    {"fsdp_min_num_params", integer(0)},
                    {"fsdp_transformer_layer_cls_to_wrap", opt_text()},
                    {"accelerator_config", dict()},
                    {"parallelism_config", dict()},
                    {"use_torch_fsdp2", flag()},
                    {"use_megatron_fsdp", flag()},
                    {"use_custom_fsdp", flag()},
                    {"data_parallel_sharding_strategy", text("no_shard")}});
}

}  // namespace

void add_moe_options(OptionList& list) {
  list.topic("Mixture of experts", "moe");
  add_experts(list);
  add_router(list);
  list.no_effect_all("permutation and routing are always fused", {{"moe_permute_fusion", flag()},
                                                                  {"moe_router_fusion", flag()},
                                                                  {"moe_use_legacy_grouped_gemm", flag()},
                                                                  {"moe_per_layer_logging", flag()},
                                                                  {"moe_router_padding_for_fp8", flag()}});
  list.refused_all("it needs communication kernels that Megalith has not (DeepEP, 1F1B all-to-all overlap)",
                   {{"moe_enable_deepep", flag()},
                    {"moe_flex_dispatcher_backend", opt_text()},
                    {"overlap_moe_expert_parallel_comm", flag()}});
  list.refused_all("dense checkpoints are not turned into experts",
                   {{"moe_use_upcycling", flag()}, {"moe_upcycling_granularity", integer(1)}});
}

void add_memory_options(OptionList& list) {
  list.topic("Memory and kernels", "models");
  add_recompute(list);
  add_fusion(list);
  add_foreign_memory_settings(list);
}

}  // namespace megalith::config
