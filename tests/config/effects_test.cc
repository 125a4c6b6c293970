// `implemented` is a promise: changing the option changes what it should. One row an option; an implemented option
// without a row, or a row without an effect, fails. The table grows with the product.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <set>

#include "megalith/config/derive.h"
#include "megalith/config/option_table.h"
#include "megalith/config/validate.h"
#include "tests/config/effects.h"

namespace megalith::config {
namespace {

std::string groups(const TrainingArguments& args) {
  const layout::RankGrid grid(grid_shape(args, 16));
  std::string text;
  for (const layout::GroupKind kind : grid.kinds()) text += fmt::format("{}: {}\n", name(kind), grid.groups(kind));
  return text;
}

std::string seeds(const TrainingArguments& args) {
  const layout::RankGrid grid(grid_shape(args, 16));
  std::string text;
  for (int rank = 0; rank < 16; ++rank) {
    const layout::RngSeeds streams = rng_seeds(args, grid, rank);
    text += fmt::format("{} {} {} {}\n", streams.cpu, streams.default_stream, streams.model_parallel,
                        streams.expert_parallel);
  }
  return text;
}

std::string batches(const TrainingArguments& args) {
  const layout::BatchPlan plan = batch_plan(args, 2);
  if (const auto found = layout::problems(plan); !found.empty()) return "refused: " + found.front();
  const layout::MicrobatchCalculator calculator(plan);
  std::string text;
  for (int64_t consumed : {0, 40, 100, 1000}) {
    const layout::BatchSizes sizes = calculator.at(consumed);
    text += fmt::format("{} {} {}\n", sizes.num_microbatches, sizes.global_batch_size, sizes.running_global_batch_size);
  }
  return text;
}

std::string layers(const TrainingArguments& args) {
  const TrainingArguments effective = derive(args).args;
  std::string text;
  for (const layout::Stage& stage : layout::LayerSplit(split_request(effective)).stages())
    text += fmt::format("{}.{}: {} from {}\n", stage.pp_rank, stage.vp_stage, stage.num_layers, stage.offset);
  return text;
}

std::string schedule(const TrainingArguments& args) {
  const TrainingArguments effective = derive(args).args;
  std::string text;
  for (int rank = 0; rank < effective.parallel.pp.value_or(1); ++rank)
    for (const auto& action : layout::pipeline_schedule(pipeline_shape(effective, 8), rank).actions)
      text += action.text() + " ";
  return text;
}

std::string timeout(const TrainingArguments& args) { return fmt::format("{}", comm_timeout_s(args)); }
std::string backend(const TrainingArguments& args) {
  return comm_backend(args, /*has_cuda=*/true) == CommBackend::kNccl ? "nccl" : "gloo";
}

std::vector<Effect> own_effects() {
  return {
      {"tensor_model_parallel_size", {}, {}, {"--tp=2"}, groups},
      {"pipeline_model_parallel_size", {}, {}, {"--pp=2"}, groups},
      {"context_parallel_size", {}, {}, {"--cp=2"}, groups},
      {"expert_model_parallel_size", {}, {}, {"--ep=2"}, groups},
      {"expert_tensor_parallel_size", {"--tp=2"}, {}, {"--etp=1"}, groups},
      {"num_distributed_optimizer_instances", {}, {}, {"--num_distributed_optimizer_instances=2"}, groups},
      {"use_tp_pp_dp_mapping", {"--pp=2"}, {}, {"--use_tp_pp_dp_mapping"}, groups},
      {"hierarchical_context_parallel_sizes",
       {"--cp=4"},
       {},
       {"--hierarchical_context_parallel_sizes", "2", "2"},
       groups},
      {"seed", {}, {"--seed=1"}, {"--seed=2"}, seeds},
      {"data_parallel_random_init", {}, {}, {"--data_parallel_random_init"}, seeds},
      {"per_device_train_batch_size",
       {"--global_batch_size=64"},
       {"--micro_batch_size=1"},
       {"--micro_batch_size=2"},
       batches},
      {"gradient_accumulation_steps", {}, {}, {"--gradient_accumulation_steps=4"}, batches},
      {"global_batch_size", {"--micro_batch_size=1"}, {}, {"--global_batch_size=64"}, batches},
      {"rampup_batch_size",
       {"--micro_batch_size=1", "--global_batch_size=16"},
       {},
       {"--rampup_batch_size", "4", "4", "100"},
       batches},
      {"step_batch_size_schedule", {"--micro_batch_size=1"}, {}, {"--step_batch_size_schedule=0:4 50:8"}, batches},
      {"seq_length",
       {"--micro_batch_size=1", "--step_batch_size_schedule=0:4 500:8"},
       {"--seq_length=1"},
       {"--seq_length=10"},
       batches},
      {"decrease_batch_size_if_needed",
       {"--micro_batch_size=4", "--global_batch_size=20"},
       {},
       {"--decrease_batch_size_if_needed"},
       batches},
      {"num_layers", {"--pp=2"}, {"--num_layers=4"}, {"--num_layers=8"}, layers},
      {"virtual_pipeline_model_parallel_size", {"--pp=2", "--num_layers=8"}, {}, {"--vpp=2"}, layers},
      {"num_layers_per_virtual_pipeline_stage",
       {"--pp=2", "--num_layers=8"},
       {},
       {"--num_layers_per_virtual_pipeline_stage=2"},
       layers},
      {"pipeline_model_parallel_layout",
       {"--pp=2", "--num_layers=4"},
       {},
       {"--pipeline_model_parallel_layout=Et|tttL"},
       layers},
      {"decoder_first_pipeline_num_layers",
       {"--pp=2", "--num_layers=8"},
       {},
       {"--decoder_first_pipeline_num_layers=3"},
       layers},
      {"decoder_last_pipeline_num_layers",
       {"--pp=2", "--num_layers=8"},
       {},
       {"--decoder_last_pipeline_num_layers=3"},
       layers},
      {"pipeline_schedule", {"--pp=2"}, {}, {"--pipeline_schedule=zero_bubble"}, schedule},
      {"microbatch_group_size_per_virtual_pipeline_stage",
       {"--pp=2", "--vpp=2", "--num_layers=8"},
       {},
       {"--microbatch_group_size_per_virtual_pipeline_stage=4"},
       schedule},
      {"account_for_embedding_in_pipeline_split",
       {"--pp=2", "--num_layers=7"},
       {},
       {"--account_for_embedding_in_pipeline_split"},
       layers},
      {"account_for_loss_in_pipeline_split",
       {"--pp=2", "--num_layers=7"},
       {"--account_for_embedding_in_pipeline_split"},
       {"--account_for_loss_in_pipeline_split"},
       layers},
      {"ddp_timeout", {}, {}, {"--ddp_timeout=60"}, timeout},
      {"distributed_timeout_minutes", {}, {}, {"--distributed_timeout_minutes=5"}, timeout},
      {"ddp_backend", {}, {}, {"--ddp_backend=gloo"}, backend},
      {"use_cpu", {}, {}, {"--use_cpu"}, backend},
  };
}

std::vector<Effect> effects() {
  std::vector<Effect> all = own_effects();
  for (Effect& effect : model_effects()) all.push_back(std::move(effect));
  return all;
}

Words joined(const Words& base, const Words& more) {
  Words words = base;
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(Effects, ImplementedOptionsChangeWhatTheyShould) {
  for (const Effect& effect : effects()) {
    SCOPED_TRACE(effect.option);
    const std::string without = effect.observe(args_of(joined(effect.base, effect.without), effect.dialect));
    const std::string with = effect.observe(args_of(joined(effect.base, effect.with), effect.dialect));
    EXPECT_NE(without, with);
  }
}

TEST(Effects, EveryImplementedOptionHasARow) {
  std::set<std::string> shown;
  for (const Effect& effect : effects()) {
    shown.insert(effect.option);
    const auto match = OptionTable::instance().find(effect.option);
    ASSERT_TRUE(match) << effect.option;
    EXPECT_EQ(match->option->status, OptionStatus::kImplemented) << effect.option;
  }
  for (const Option& option : OptionTable::instance().options()) {
    if (option.status == OptionStatus::kImplemented) {
      EXPECT_TRUE(shown.contains(option.name)) << option.name << " is called implemented; show its effect";
    }
  }
}

}  // namespace
}  // namespace megalith::config
