// What `megalith plan` and `megalith preview memory` read: the model and the machines, from the options.
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
#include "megalith/run/run_settings.h"

namespace megalith::run {

bool was_given(const config::OptionReport& report, std::string_view name);
// All weights are trained unless the words say otherwise: a plan is mostly asked for before that is decided.
config::TrainingArguments planned_arguments(config::TrainingArguments args, const config::OptionReport& report);

// The model of model_name_or_path (`model` wins; its config.json is enough), or of Megatron's options for its shape.
// `args` after derive(). Throws ConfigError or DataError.
model::ModelConfig planned_model(const std::optional<std::string>& model, const config::TrainingArguments& args);

// Of the whole model.
int64_t parameter_count(const model::ModelConfig& model);

// --gpu (a preset or a file), --gpus_per_node.
plan::Cluster planned_cluster(const std::optional<std::string>& gpu, const std::optional<int64_t>& gpus_per_node);

// What a run's fullest rank will need with sequences of so many tokens; nothing where the planner does not know the
// run: an adapter that is continued, some targets of adapters, a layout that it refuses and the run does not.
std::optional<plan::RankMemory> planned_memory(const RunSettings& run, const model::ModelConfig& model, int64_t length,
                                               at::Device device);

// Throws ConfigError when the run cannot fit into the memory of this rank's device (on CPU: a share of what is free),
// unless it is forced.
void check_memory(const RunSettings& run, const model::ModelConfig& model, const parallel::ParallelContext& context);

}  // namespace megalith::run
