// Ranks, seeds, batches, layers, pipeline schedules, communication.
#include <ATen/Context.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "megalith/base/error.h"
#include "megalith/config/derive.h"
#include "megalith/parallel/runtime.h"
#include "megalith/run/resolve/runtime_settings.h"
#include "tests/effects/effect.h"
#include "tests/support/free_port.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

using config::TrainingArguments;

std::string groups(const TrainingArguments& args) {
  const layout::RankGrid grid(config::grid_shape(args, 16));
  std::string text;
  for (const layout::GroupKind kind : grid.kinds()) text += fmt::format("{}: {}\n", name(kind), grid.groups(kind));
  return text;
}

// The settings of a rank that no launcher has started.
parallel::RuntimeSettings settings(const TrainingArguments& args) { return run::runtime_settings(args, {}); }

std::string seeds(const TrainingArguments& args) {
  const layout::RankGrid grid(config::grid_shape(args, 16));
  std::string text;
  for (int rank = 0; rank < 16; ++rank) {
    const layout::RngSeeds streams = parallel::rng_seeds(settings(args).seeds, grid, rank);
    text += fmt::format("{} {} {} {}\n", streams.cpu, streams.default_stream, streams.model_parallel,
                        streams.expert_parallel);
  }
  return text;
}

std::string library_switches(const TrainingArguments& args) {
  parallel::apply_library_switches(settings(args).switches);
  const bool on = at::globalContext().deterministicAlgorithms(), tf32 = at::globalContext().allowTF32CuBLAS();
  parallel::apply_library_switches({});
  return fmt::format("{}, products of fp32 in {}", on ? "kernels that give the same bits" : "the fastest kernels",
                     tf32 ? "TF32" : "fp32");
}

std::string batches(const TrainingArguments& args) {
  const layout::BatchPlan plan = config::batch_plan(args, 2);
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
  const TrainingArguments effective = config::derive(args).args;
  std::string text;
  for (const layout::Stage& stage : layout::LayerSplit(config::split_request(effective)).stages())
    text += fmt::format("{}.{}: {} from {}\n", stage.pp_rank, stage.vp_stage, stage.num_layers, stage.offset);
  return text;
}

std::string schedule(const TrainingArguments& args) {
  const TrainingArguments effective = config::derive(args).args;
  std::string text;
  for (int rank = 0; rank < effective.parallel.pp.value_or(1); ++rank)
    for (const auto& action : layout::pipeline_schedule(config::pipeline_shape(effective, 8), rank).actions)
      text += action.text() + " ";
  return text;
}

std::string nccl(const TrainingArguments& args) {
  std::string text;
  for (const auto& [group, each] : parallel::nccl_settings(settings(args).nccl))
    text += fmt::format("{}: {} {} {}\n", group, each.high_priority_stream, each.sharp, each.max_ctas.value_or(0));
  return text;
}

// A file that lives as long as the program.
std::string nccl_file() {
  static const TempFolder folder;
  std::ofstream(folder / "nccl.yaml") << "tp: {max_ctas: 8}\n";
  return (folder / "nccl.yaml").string();
}

// How long a rank looks for a store that nobody serves, as it says.
std::string connect_time(const TrainingArguments& args) {
  const std::map<const char*, std::string> second_of_two{{"RANK", "1"},
                                                         {"WORLD_SIZE", "2"},
                                                         {"LOCAL_RANK", "1"},
                                                         {"LOCAL_WORLD_SIZE", "2"},
                                                         {"MASTER_ADDR", "127.0.0.1"},
                                                         {"MASTER_PORT", std::to_string(free_port())}};
  for (const auto& [name, value] : second_of_two) setenv(name, value.c_str(), 1);
  std::string message = "connected";
  try {
    parallel::Runtime().initialize(run::runtime_settings(args, run::world_of(comm::rendezvous_from_env())));
  } catch (const CommError& error) {
    message = error.what();
  }
  for (const auto& [name, value] : second_of_two) unsetenv(name);
  const size_t at = message.find("within");
  return at == std::string::npos ? message : message.substr(at, message.find(',', at) - at);
}

// On a machine with a GPU.
std::string device_and_backend(const TrainingArguments& args) {
  const parallel::DeviceSettings device = settings(args).device;
  return fmt::format("{} {}", parallel::choose_device({.gpus = 1, .settings = device}).str(),
                     static_cast<int>(device.backend));
}

}  // namespace

Effects layout_effects() {
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
      {"full_determinism", {}, {}, {"--full_determinism"}, library_switches},
      {"tf32", {}, {}, {"--tf32"}, library_switches},
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
      {"delay_grad_reduce",
       {"--pp=2", "--vpp=2", "--num_layers=8", "--overlap_grad_reduce"},
       {},
       {"--delay_grad_reduce=false"},
       schedule},
      {"align_grad_reduce",
       {"--pp=2", "--vpp=2", "--num_layers=8", "--overlap_grad_reduce"},
       {},
       {"--align_grad_reduce=false"},
       schedule},
      {"store_connect_timeout",
       {"--use_cpu"},
       {"--store_connect_timeout=1"},
       {"--store_connect_timeout=2"},
       connect_time},
      {"nccl_communicator_config_path", {}, {}, {"--nccl_communicator_config_path=" + nccl_file()}, nccl},
      {"high_priority_stream_groups", {}, {}, {"--high_priority_stream_groups=dp_cp"}, nccl},
      {"use_sharp", {}, {}, {"--use_sharp"}, nccl},
      {"ddp_backend", {}, {}, {"--ddp_backend=gloo"}, device_and_backend},
      {"use_cpu", {}, {}, {"--use_cpu"}, device_and_backend},
  };
}

}  // namespace megalith::testing
