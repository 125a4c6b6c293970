// Options about the source and the form of the model.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "megalith/config/derive.h"
#include "megalith/config/validate.h"
#include "megalith/layout/rng_seeds.h"
#include "megalith/model/auto_model.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/resolve/trainer_settings.h"
#include "megalith/train/step/microbatch_runner.h"
#include "tests/effects/effect.h"
#include "tests/model/model_support.h"

namespace megalith::testing {
namespace {

using config::TrainingArguments;

std::string held(const TrainingArguments& args) {
  const model::ModelOptions o = run::model_options(config::derive(args).args, at::kCPU);
  const model::RecomputePlan& r = o.recompute;
  std::string context;
  for (const nn::ContextMode mode : o.context_modes) context += fmt::format(" {}", static_cast<int>(mode));
  return fmt::format(
      "{} sequence {} loss chunk {}; recompute {} of {} split {} attention {} mlp {} norms {} up {}; context{}",
      c10::toString(o.dtype), o.sequence_parallel, o.loss_chunk, static_cast<int>(r.layers), r.num_layers,
      r.split_over_tp, r.core_attention, r.mlp, r.norms, r.mla_up_proj, context);
}

std::string loaded(const TrainingArguments& args) {
  std::string text;
  run_ranks(1, [&](const Rank& rank) {
    parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = 1}));
    context.rng().seed(layout::adapter_seeds(args.seeds.seed, context.grid(), 0));
    const auto models = model::AutoModel::from_pretrained(*args.source.model_name_or_path,
                                                          run::model_settings(args, context.device()), context);
    text = fmt::format("{} with {} layers", models.config().family, models.config().num_layers);
  });
  return text;
}

// Returns the settings of a model with experts in a run.
std::string experts(const TrainingArguments& args) {
  const TrainingArguments effective = config::derive(args).args;
  const auto config = run::model_overrides(effective).applied_to(model::read_model_config(golden_folder("glm4_moe")));
  const nn::RouterShape& r = config.moe->router;
  const model::ModelOptions o = run::model_options(effective, at::kCPU);
  std::string text =
      fmt::format("z {} jitter {} rate {} in {} capacity {} padded {} by position {} replay {} sinkhorn {};", r.z_coeff,
                  r.jitter, r.bias_update_rate, r.dtype ? c10::toString(*r.dtype) : "the model's",
                  r.capacity_factor.value_or(-1), r.pad_to_capacity, r.drop_by_position, r.replay, r.sinkhorn);
  for (const nn::BalanceLoss& loss : r.losses) text += fmt::format(" {}·{}", loss.coeff, static_cast<int>(loss.kind));
  return text + fmt::format("; dispatcher {} overlap {} recompute {}", static_cast<int>(o.moe.dispatcher),
                            o.moe.overlap_shared, o.recompute.moe);
}

std::string engine(const TrainingArguments& args) {
  const auto settings =
      train::engine_settings({}, at::kFloat, run::step_settings(config::derive(args).args).overlap_p2p_comm);
  return settings.overlap ? "messages travel while a rank computes" : "a rank waits for its messages";
}

std::string graphs(const TrainingArguments& args) {
  const train::StepSettings step = run::step_settings(config::derive(args).args);
  if (!step.graphs) return "the host starts each kernel";
  return fmt::format("micro-batches are recorded after {} steps", step.graph_warmup_steps);
}

// Returns the messages of the checks before a run.
std::string refused(const TrainingArguments& args) {
  return fmt::format("{}", fmt::join(config::problems(args, {.world_size = 1}), "; "));
}

std::string folder_of(const std::string& name) { return "--model_name_or_path=" + golden_folder(name).string(); }

}  // namespace

Effects model_effects() {
  const Words full{"--recompute_granularity=full"};
  return {
      {"model_name_or_path", {}, {folder_of("llama")}, {folder_of("gpt2")}, loaded},
      {"bf16", {}, {}, {"--bf16"}, held},
      {"fp16", {}, {}, {"--fp16"}, held},
      {"sequence_parallel", {"--tp=2"}, {}, {"--sequence_parallel"}, held},
      {"cp_comm_type", {"--cp=2"}, {}, {"--cp_comm_type=a2a"}, held},
      {"cross_entropy_loss_fusion", {}, {}, {"--cross_entropy_loss_fusion"}, held},
      {"cuda_graph_impl", {}, {}, {"--cuda_graph_impl=local"}, graphs},
      {"cuda_graph_warmup_steps", {"--cuda_graph_impl=local"}, {}, {"--cuda_graph_warmup_steps=0"}, graphs},
      {"cuda_graph_scope", {"--cuda_graph_impl=local"}, {}, {"--cuda_graph_scope=attn"}, refused},
      {"recompute_granularity", {}, {}, full, held},
      {"recompute_method", full, {}, {"--recompute_method=block"}, held},
      {"recompute_num_layers", full, {}, {"--recompute_num_layers=2"}, held},
      {"recompute_modules", {"--recompute_granularity=selective"}, {}, {"--recompute_modules=mlp"}, held},
      {"gradient_checkpointing", {}, {}, {"--gradient_checkpointing"}, held},
      {"recompute_activations", {}, {}, {"--recompute_activations"}, held},
      {"distribute_saved_activations",
       {"--recompute_granularity=full", "--tp=2"},
       {},
       {"--distribute_saved_activations"},
       held},
      {"moe_aux_loss_coeff", {}, {}, {"--moe_aux_loss_coeff=0.01"}, experts},
      {"moe_router_load_balancing_type",
       {"--moe_aux_loss_coeff=0.01"},
       {},
       {"--moe_router_load_balancing_type=seq_aux_loss"},
       experts},
      {"moe_z_loss_coeff", {}, {}, {"--moe_z_loss_coeff=0.001"}, experts},
      {"moe_router_dtype", {}, {}, {"--moe_router_dtype=fp64"}, experts},
      {"moe_router_bias_update_rate", {}, {}, {"--moe_router_bias_update_rate=0.01"}, experts},
      {"moe_input_jitter_eps", {}, {}, {"--moe_input_jitter_eps=0.01"}, experts},
      {"moe_expert_capacity_factor", {}, {}, {"--moe_expert_capacity_factor=1.5"}, experts},
      {"moe_pad_expert_input_to_capacity",
       {"--moe_expert_capacity_factor=1.5"},
       {},
       {"--moe_pad_expert_input_to_capacity"},
       experts},
      {"moe_token_drop_policy",
       {"--moe_expert_capacity_factor=1.5"},
       {},
       {"--moe_token_drop_policy=position"},
       experts},
      {"moe_enable_routing_replay", {}, {}, {"--moe_enable_routing_replay"}, experts},
      {"moe_token_dispatcher_type", {}, {}, {"--moe_token_dispatcher_type=alltoall"}, experts},
      {"moe_shared_expert_overlap",
       {"--moe_token_dispatcher_type=alltoall"},
       {},
       {"--moe_shared_expert_overlap"},
       experts},
      {"moe_layer_recompute", {}, {}, {"--moe_layer_recompute"}, experts},
      {"overlap_p2p_comm",
       {"--pp=4", "--vpp=2", "--num_layers=8"},
       {"--overlap_p2p_comm=true"},
       {"--overlap_p2p_comm=false"},
       engine},
  };
}

}  // namespace megalith::testing
