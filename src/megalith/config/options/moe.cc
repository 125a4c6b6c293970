// Options of experts and their router, of recomputation, fused kernels and CUDA graphs.
//
// Experts follow Megatron's vocabulary. A model folder brings most of them in its config.json, so they are optional;
// the balancing loss and the dispatcher belong to the run and may be given beside a folder.
#include "megalith/config/option_list_internal.h"

namespace megalith::config {
namespace {

// Number, width and communication of experts.
void add_experts(OptionList& list) {
  auto moe = list.part(&TrainingArguments::moe);
  moe.add("num_experts", &MoeConfig::num_experts, "experts per MoE layer (none: dense)")
      .at_least(1)
      .describes_new_model();
  moe.add("moe_layer_freq", &MoeConfig::layer_freq, "every n-th layer is MoE, or a list such as ([1]*3+[0]*2)")
      .pretrain_default("1")
      .describes_new_model();
  moe.add("moe_ffn_hidden_size", &MoeConfig::ffn_hidden_size, "width of an expert (none: ffn_hidden_size)")
      .at_least(1)
      .describes_new_model();
  moe.add("moe_shared_expert_intermediate_size", &MoeConfig::shared_expert_intermediate_size,
          "width of all shared experts together (none: no shared expert)")
      .at_least(1)
      .describes_new_model();
  moe.add("moe_shared_expert_gate", &MoeConfig::shared_expert_gate, "sigmoid gate on the shared expert")
      .pretrain_default(false)
      .describes_new_model();
  moe.add("moe_shared_expert_overlap", &MoeConfig::shared_expert_overlap,
          "run the shared expert beside the token exchange; alltoall only");
  moe.add("overlap_moe_expert_parallel_comm", &MoeConfig::overlap_expert_parallel_comm,
          "run the forward of a micro-batch together with the backward of another, each beside the other's token"
          " exchange; alltoall only, with pp > 1 virtual stages only");
  // allgather moves all tokens to all ranks; alltoall, the default, moves each token only to the ranks of its experts.
  moe.add("moe_token_dispatcher_type", &MoeConfig::token_dispatcher, "how tokens reach their experts")
      .refuse({"flex"}, "the flex dispatcher needs DeepEP; use alltoall");
  moe.add("moe_grouped_gemm", &MoeConfig::grouped_gemm, "one kernel for all local experts")
      .pretrain_default(false)
      .no_effect("the experts of a rank are always computed together");
  // Capacity = factor * tokens * topk / experts rows per expert. Rows beyond it are dropped by the policy below;
  // without a factor nothing is dropped and the shapes depend on the routing.
  moe.add("moe_expert_capacity_factor", &MoeConfig::expert_capacity_factor,
          "rows of an expert over the fair share; negative or none: nothing is dropped");
  moe.add("moe_pad_expert_input_to_capacity", &MoeConfig::pad_expert_input_to_capacity,
          "pad every expert to its capacity; needs moe_expert_capacity_factor")
      .pretrain_default(false);
  moe.add("moe_token_drop_policy", &MoeConfig::token_drop_policy, "drop the smallest weights or the last positions")
      .pretrain_default(DropPolicy::kProbs);
  moe.add("moe_enable_routing_replay", &MoeConfig::enable_routing_replay, "record routing decisions and replay them");
  moe.add("moe_per_layer_logging", &MoeConfig::per_layer_logging, "log the losses of each layer's router");
}

// Scores, choice and balance.
void add_router(OptionList& list) {
  auto router = list.part(&TrainingArguments::router);
  router.add("moe_router_topk", &RouterConfig::topk, "experts per token")
      .at_least(1)
      .pretrain_default(2)
      .describes_new_model();
  router
      .add("moe_router_load_balancing_type", &RouterConfig::load_balancing_type,
           "how experts are kept equally busy; several with one coefficient each")
      .choices({"aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"})
      .pretrain_default({"aux_loss"});
  router.add("moe_aux_loss_coeff", &RouterConfig::aux_loss_coeff, "weight of the balancing loss, one per type")
      .alias({"moe_aux_loss_coef"})
      .at_least(0)
      .pretrain_default({0.0});
  router.add("moe_z_loss_coeff", &RouterConfig::z_loss_coeff, "weight of the router-logit penalty").at_least(0);
  router.add("moe_router_score_function", &RouterConfig::score_function, "softmax or sigmoid")
      .pretrain_default(ScoreFunction::kSoftmax)
      .describes_new_model();
  router.add("moe_router_dtype", &RouterConfig::dtype,
             "number format of the router (none: fp32 with sigmoid scores and from 32 experts on)");
  router.add("moe_router_pre_softmax", &RouterConfig::pre_softmax, "softmax over all experts before choosing")
      .pretrain_default(false)
      .describes_new_model();
  // Group-limited routing (DeepSeek V3): the experts form groups, and a token may use experts of its best groups only,
  // which bounds the number of machines it is sent to.
  router.add("moe_router_num_groups", &RouterConfig::num_groups, "group-limited routing: groups")
      .at_least(1)
      .describes_new_model();
  router.add("moe_router_group_topk", &RouterConfig::group_topk, "group-limited routing: groups a token may use")
      .at_least(1)
      .describes_new_model();
  router.add("moe_router_topk_scaling_factor", &RouterConfig::topk_scaling_factor, "multiplies the chosen weights")
      .describes_new_model();
  // Balance without a loss (DeepSeek V3): a bias per expert takes part in the choice but not in the weights, and
  // moves by a fixed rate against the load.
  router
      .add("moe_router_enable_expert_bias", &RouterConfig::enable_expert_bias,
           "balance by a bias on the choice in place of a loss")
      .pretrain_default(false);
  router.add("moe_router_bias_update_rate", &RouterConfig::bias_update_rate, "step of the balancing bias")
      .pretrain_default(1e-3);
  router.add("moe_input_jitter_eps", &RouterConfig::input_jitter_eps, "noise on the router's input").at_least(0);
}

// Memory for time. Three front ends ask for it in three ways (granularity, gradient_checkpointing,
// recompute_activations); derive() brings them into one.
void add_recompute(OptionList& list) {
  auto recompute = list.part(&TrainingArguments::recompute);
  recompute.add("recompute_granularity", &RecomputeConfig::granularity, "full layers or selected modules");
  recompute.add("recompute_method", &RecomputeConfig::method, "with full: groups of n layers, or the first n");
  recompute.add("recompute_num_layers", &RecomputeConfig::num_layers, "the n of recompute_method").at_least(1);
  // Megatron's names of modules.
  recompute
      .add("recompute_modules", &RecomputeConfig::modules, "with selective: what is computed twice (none: core_attn)")
      .choices({"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "mlp_act", "moe", "shared_experts"})
      .commas();
  recompute.add("moe_layer_recompute", &RecomputeConfig::moe_layer_recompute, "compute MoE layers twice");
  recompute
      .add("gradient_checkpointing", &RecomputeConfig::gradient_checkpointing,
           "without recompute_granularity the same as full, uniform, 1")
      .train_only();
  recompute
      .add("recompute_activations", &RecomputeConfig::recompute_activations,
           "the same as recompute_granularity selective")
      .pretrain_only();
  recompute
      .add("distribute_saved_activations", &RecomputeConfig::distribute_saved_activations,
           "split stored layer inputs over tp; full recompute without sequence_parallel")
      .pretrain_only();
  recompute
      .add("cpu_offloading", &RecomputeConfig::cpu_offloading,
           "keep the activations of all layers but the last, or of the first cpu_offloading_num_layers, in host memory")
      .pretrain_only();
  recompute
      .add("cpu_offloading_num_layers", &RecomputeConfig::cpu_offloading_num_layers,
           "the same for so many layers, from the first; above 0 it implies cpu_offloading")
      .at_least(0)
      .pretrain_only();
}

// Fused kernels of the reference are the only kernels here, so most of these switches have no effect. The exceptions
// change results (bias_activation_fusion) or memory (cross_entropy_loss_fusion).
void add_fusion(OptionList& list) {
  auto fusion = list.part(&TrainingArguments::fusion);
  fusion
      .add("bias_activation_fusion", &FusionConfig::bias_activation,
           "always one kernel; gpt2 from scratch: GELU by its tanh approximation, as the reference's kernel")
      .negated_by({"no_bias_swiglu_fusion", "no_bias_gelu_fusion"})
      .pretrain_default(true);
  fusion.add("apply_rope_fusion", &FusionConfig::rope, "rotary embedding in one kernel")
      .negated_by({"no_rope_fusion"})
      .pretrain_default(true)
      .no_effect("rotary embedding is always one kernel");
  fusion.add("cross_entropy_loss_fusion", &FusionConfig::cross_entropy_loss,
             "softmax, loss and gradient in one kernel; effective with tp 1");
  fusion
      .add("gradient_accumulation_fusion", &FusionConfig::gradient_accumulation,
           "weight gradients straight into the fp32 buffer")
      .pretrain_only()
      .no_effect("weight gradients always go straight into the gradient buffer");
  // CUDA graphs replay a recorded micro-batch without launching its kernels one by one.
  fusion
      .add("cuda_graph_impl", &FusionConfig::cuda_graph_impl,
           "local: forward and backward of micro-batches of equal shape as CUDA graphs, where the device can run them "
           "alone")
      .alias({"enable_cuda_graph"})
      .choices({"none", "local", "transformer_engine"})
      .bool_words("local", "none")
      .refuse({"transformer_engine"}, "Transformer Engine is not used; use local");
  fusion
      .add("cuda_graph_scope", &FusionConfig::cuda_graph_scope,
           "what a graph holds: full, a micro-batch's forward and backward; parts of layers are refused")
      .commas();
  fusion
      .add("cuda_graph_warmup_steps", &FusionConfig::cuda_graph_warmup_steps,
           "steps that run without graphs before the first is recorded")
      .at_least(0);
}

}  // namespace

void add_moe_options(OptionList& list) {
  list.topic("Mixture of experts");
  add_experts(list);
  add_router(list);
}

void add_memory_options(OptionList& list) {
  list.topic("Memory and kernels");
  add_recompute(list);
  add_fusion(list);
}

}  // namespace megalith::config
