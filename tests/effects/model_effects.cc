// Where the model comes from and how it is held.
#include <fmt/format.h>

#include "megalith/config/derive.h"
#include "megalith/model/auto_model.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/train/microbatch_runner.h"
#include "tests/effects/effect.h"
#include "tests/model/model_support.h"

namespace megalith::testing {
namespace {

using config::TrainingArguments;

std::string held(const TrainingArguments& args) {
  const model::ModelOptions o = model::ModelOptions::from(config::derive(args).args, at::kCPU);
  const model::RecomputePlan& r = o.recompute;
  std::string context;
  for (const nn::ContextMode mode : o.context_modes) context += fmt::format(" {}", static_cast<int>(mode));
  return fmt::format(
      "{} sequence {} loss chunk {}; recompute {} of {} split {} attention {} mlp {} norms {}; context{}",
      c10::toString(o.dtype), o.sequence_parallel, o.loss_chunk, static_cast<int>(r.layers), r.num_layers,
      r.split_over_tp, r.core_attention, r.mlp, r.norms, context);
}

std::string loaded(const TrainingArguments& args) {
  std::string text;
  run_ranks(1, [&](const Rank& rank) {
    parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = 1}));
    context.rng().seed(config::rng_seeds(args, context.grid(), 0));
    const auto models = model::AutoModel::from_pretrained(*args.source.model_name_or_path, args, context);
    text = fmt::format("{} with {} layers", models.config().family, models.config().num_layers);
  });
  return text;
}

std::string engine(const TrainingArguments& args) {
  const auto settings = train::engine_settings({}, at::kFloat, config::derive(args).args.pipeline);
  return settings.overlap ? "messages travel while a rank computes" : "a rank waits for its messages";
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
      {"overlap_p2p_comm",
       {"--pp=4", "--vpp=2", "--num_layers=8"},
       {"--overlap_p2p_comm=true"},
       {"--overlap_p2p_comm=false"},
       engine},
  };
}

}  // namespace megalith::testing
