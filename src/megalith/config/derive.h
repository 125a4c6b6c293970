// Computes what follows from the arguments, once, for everything that needs it.
//
// Order of use: parse_arguments, fill empty values from the checkpoint's config, validate, derive. The functions below
// expect arguments that validate() accepts; on others they may throw ConfigError.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/training_arguments.h"
#include "megalith/layout/grid_shape.h"
#include "megalith/layout/launcher_vpp.h"
#include "megalith/layout/layer_split.h"
#include "megalith/layout/microbatches.h"
#include "megalith/layout/pipeline_schedule.h"

namespace megalith::config {

// Arguments in their final form.
struct EffectiveArguments {
  TrainingArguments args;             // every normalization applied; deriving them again changes nothing
  std::vector<std::string> warnings;  // one for each value that is not what the user wrote
};

// Applies all normalizations: parallel sizes default to 1, sequence parallelism is switched on or off, the virtual size
// is taken from the layout, bf16 accumulates in fp32, and so on (derive.cc). `experts` says that the model has experts
// even if no option does.
EffectiveArguments derive(const TrainingArguments& args, bool experts = false);

// Returns whether derived arguments ask for training, not only for evaluation.
bool trains(const RunConfig& run);
// Returns the rank grid that the arguments ask for.
layout::GridShape grid_shape(const TrainingArguments& args, int world_size);
// Returns how layers are split; needs num_layers. Layers that do not divide are balanced rather than rejected.
layout::SplitRequest split_request(const TrainingArguments& args);
// Returns the same without its sizes (num_layers, mtp_layers, pp), for callers that take them from a model and its
// ranks.
layout::SplitRequest split_request(const PipelineConfig& pipeline);
// Returns what decides about virtual stages, in Megatron's terms; needs num_layers.
layout::LauncherVppRequest vpp_request(const TrainingArguments& args);
// Returns the pipeline schedule of a step of `microbatches` micro-batches.
layout::PipelineShape pipeline_shape(const TrainingArguments& args, int microbatches, bool forward_only = false);
// Returns the input of the micro-batch calculator; `dp` is the dense data-parallel size.
layout::BatchPlan batch_plan(const TrainingArguments& args, int dp);
// Returns how fp8 scales are found: fp8_recipe, or else the default of the reference: delayed in Megatron's pretrain,
// tensorwise in train.
std::string fp8_recipe(const TrainingArguments& args);
// Replaces a leading ~ by the home folder.
std::string expand_home(const std::string& path);
// Returns the seed of the sample order: data_seed, or seed.
uint64_t data_seed(const TrainingArguments& args);

}  // namespace megalith::config
