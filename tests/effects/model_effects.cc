// Options about the source of the model, and about its precision, memory and messages in a run.
#include <fmt/format.h>

#include "megalith/config/validate.h"
#include "megalith/layout/rng_seeds.h"
#include "megalith/model/auto_model.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/run/resolve/model_settings.h"
#include "tests/effects/effect.h"
#include "tests/effects/watched_run.h"
#include "tests/model/model_support.h"

namespace megalith::testing {
namespace {

using config::TrainingArguments;

std::string model_numbers(const TrainingArguments& args) { return watch_run(args).numbers; }
std::string model_messages(const TrainingArguments& args) { return watch_run(args).messages; }

// Work that is done twice shows in its products and in the memory of their results.
std::string work_and_memory(const TrainingArguments& args) {
  const WatchedRun run = watch_run(args);
  return fmt::format("{}{} bytes", run.operators, run.allocated_bytes);
}

// Messages between stages that travel while the rank computes.
std::string travels_meanwhile(const TrainingArguments& args) {
  return watch_run(args, {.model = "deep"}).products_meanwhile;
}

// Work of the last of two stages while its messages travel.
std::string last_stage_meanwhile(const TrainingArguments& args) {
  return watch_run(args, {.rank = 1}).products_meanwhile;
}

// Messages that wait until the host has read the gradient norm and completes the update.
std::string after_the_norm(const TrainingArguments& args) {
  return watch_run(args, {.model = "deep", .dp = 2}).messages_in_update;
}

// Graphs need a GPU: a run without one says that it does not use them.
std::string said_of_graphs(const TrainingArguments& args) {
  const std::string said = watch_run(args).said;
  const size_t at = said.find("cuda_graph_impl");
  return at == std::string::npos ? "" : said.substr(at, said.find('\n', at) - at);
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

// Returns the messages of the checks before a run.
std::string refused(const TrainingArguments& args) {
  return fmt::format("{}", fmt::join(config::problems(args, {.world_size = 1}), "; "));
}

std::string folder_of(const std::string& name) { return "--model_name_or_path=" + golden_folder(name).string(); }

}  // namespace

Effects model_effects() {
  const std::string full = "--recompute_granularity=full";
  const Words small = small_run();
  return {
      {"model_name_or_path", {}, {folder_of("llama")}, {folder_of("gpt2")}, loaded},
      {"bf16", small, {}, {"--bf16"}, model_numbers},
      {"fp16", small, {}, {"--fp16"}, model_numbers},
      {"sequence_parallel", small_run({"--tp=2"}), {}, {"--sequence_parallel"}, model_messages},
      {"cp_comm_type", small_run({"--cp=2"}), {}, {"--cp_comm_type=a2a"}, model_messages},
      {"cross_entropy_loss_fusion", small, {}, {"--cross_entropy_loss_fusion"}, work_and_memory},
      {"cuda_graph_impl", small, {}, {"--cuda_graph_impl=local"}, said_of_graphs},
      {"cuda_graph_scope", {"--cuda_graph_impl=local"}, {}, {"--cuda_graph_scope=attn"}, refused},
      {"recompute_granularity", small, {}, {full}, work_and_memory},
      {"recompute_method",
       small_run({full, "--recompute_num_layers=2"}),
       {},
       {"--recompute_method=block"},
       work_and_memory},
      {"recompute_num_layers",
       small_run({full, "--recompute_method=block"}),
       {},
       {"--recompute_num_layers=2"},
       work_and_memory},
      {"recompute_modules",
       small_run({"--recompute_granularity=selective"}),
       {},
       {"--recompute_modules=mlp"},
       work_and_memory},
      {"gradient_checkpointing", small, {}, {"--gradient_checkpointing"}, work_and_memory},
      {"recompute_activations", small, {}, {"--recompute_activations"}, work_and_memory},
      {"distribute_saved_activations",
       small_run({full, "--tp=2"}),
       {},
       {"--distribute_saved_activations"},
       model_messages},
      {"tp_comm_overlap",
       small_run({"--tp=2", "--sequence_parallel"}),
       {},
       {"--tp_comm_overlap"},
       [](const TrainingArguments& args) { return watch_run(args).products_meanwhile; }},
      {"tp_comm_overlap_slices",
       small_run({"--tp=2", "--sequence_parallel", "--tp_comm_overlap"}),
       {},
       {"--tp_comm_overlap_slices=2"},
       model_messages},
      {"overlap_p2p_comm",
       small_run({"--pp=4", "--vpp=2", "--num_layers=8", "--gradient_accumulation_steps=4"}),
       {"--overlap_p2p_comm=true"},
       {"--overlap_p2p_comm=false"},
       travels_meanwhile},
      {"overlap_param_gather_with_optimizer_step",
       small_run({"--pp=2", "--vpp=2", "--num_layers=8", "--use_distributed_optimizer", "--overlap_grad_reduce",
                  "--overlap_param_gather"}),
       {},
       {"--overlap_param_gather_with_optimizer_step"},
       after_the_norm},
      {"defer_embedding_wgrad_compute",
       small_run({"--pp=2"}),
       {},
       {"--defer_embedding_wgrad_compute"},
       last_stage_meanwhile},
      {"wgrad_deferral_limit",
       small_run({"--pp=2", "--defer_embedding_wgrad_compute"}),
       {},
       {"--wgrad_deferral_limit=1"},
       last_stage_meanwhile},
  };
}

}  // namespace megalith::testing
