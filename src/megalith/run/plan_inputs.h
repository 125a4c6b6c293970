// The memory check of a run, and the inputs of `megalith plan` and `megalith preview memory`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/config/parser.h"
#include "megalith/config/training_arguments.h"
#include "megalith/model/families/model_config.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/plan/cluster.h"
#include "megalith/plan/memory.h"
#include "megalith/run/resolve/run_settings.h"

namespace megalith::run {

// Returns the memory that this machine has left, in bytes (MemAvailable of /proc/meminfo); 0 if it is unknown.
double available_host_bytes();

// Returns whether the option was given, even at its default value.
bool was_given(const config::OptionReport& report, std::string_view name);
// Assumes full fine-tuning unless finetuning_type was given: people plan before they decide on LoRA.
config::TrainingArguments planned_arguments(config::TrainingArguments args, const config::OptionReport& report);

// The model of a plan.
struct PlannedModel {
  model::ModelConfig config;
  // Modules that an adapter trains in full: those of additional_target, or else embedding and head if the run gives
  // them new rows (train_new_rows). Empty without adapters.
  std::vector<std::string> trained_modules{};
};
// Returns the model of the folder `model` or model_name_or_path (config.json is enough), or the one that Megatron's
// options describe. `args` must be derived. Throws ConfigError or DataError.
PlannedModel planned_model(const std::optional<std::string>& model, const config::TrainingArguments& args);

// Returns the number of parameters of the whole model.
int64_t parameter_count(const model::ModelConfig& model);

// Returns the cluster that --gpu (a preset or a file) and --gpus_per_node describe.
plan::Cluster planned_cluster(const std::optional<std::string>& gpu, const std::optional<int64_t>& gpus_per_node);

// Returns what the fullest rank needs for sequences of `length` tokens, or std::nullopt if the planner does not cover
// the run: a continued adapter, some adapter targets, a layout that the planner refuses and the run accepts.
std::optional<plan::RankMemory> planned_memory(const RunSettings& run, const model::ModelConfig& model, int64_t length,
                                               at::Device device);

// Throws ConfigError if the run cannot fit into the memory of this rank's device (on the CPU: into its share of free
// memory). With --force it only warns.
void check_memory(const RunSettings& run, const model::ModelConfig& model, const parallel::ParallelContext& context);

// Returns a sentence that says why tp_comm_overlap does not slice the products with the residual stream: on a GPU,
// micro-batches may be too small. Empty if it does, or was not asked for.
std::string overlap_note(const RunSettings& run, const model::ModelConfig& model, at::Device device);
// Returns a sentence that says why overlap_moe_expert_parallel_comm overlaps nothing in this run: a step may have too
// few micro-batches, or the model no experts. Empty if it does, or was not asked for.
std::string expert_overlap_note(const RunSettings& run, const model::ModelConfig& model);

}  // namespace megalith::run
