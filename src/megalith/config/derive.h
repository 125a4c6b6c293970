// What follows from the arguments: computed once, here, and handed to whoever needs it.
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

struct EffectiveArguments {
  TrainingArguments args;             // every normalisation applied; deriving them again changes nothing
  std::vector<std::string> warnings;  // one for each value that is not what the user wrote
};

// Applies the normalisations of spec/training_args.md §4 and §6: parallel sizes default to 1, sequence parallelism is
// switched on or off, the virtual size is taken from the layout, bf16 accumulates in fp32, and so on (derive.cc).
// `experts`: the model has some, though no option may say so.
EffectiveArguments derive(const TrainingArguments& args, bool experts = false);

// Whether derived arguments ask for training, not for evaluation alone.
bool trains(const RunConfig& run);
// The rank grid that the arguments ask for.
layout::GridShape grid_shape(const TrainingArguments& args, int world_size);
// How layers are split; needs num_layers. Layers that do not divide are balanced, not refused (design.md §5).
layout::SplitRequest split_request(const TrainingArguments& args);
// The same without its sizes (num_layers, mtp_layers, pp), for callers that take them from a model and its ranks.
layout::SplitRequest split_request(const PipelineConfig& pipeline);
// What decides about virtual stages, in Megatron's terms; needs num_layers.
layout::LauncherVppRequest vpp_request(const TrainingArguments& args);
// The pipeline schedule of a step of so many micro-batches.
layout::PipelineShape pipeline_shape(const TrainingArguments& args, int microbatches, bool forward_only = false);
// The micro-batch calculator's input; `dp` is the dense data-parallel size.
layout::BatchPlan batch_plan(const TrainingArguments& args, int dp);
// A path with ~ for the home folder, written out.
std::string expand_home(const std::string& path);
// What the order of the samples follows from: data_seed, or seed.
uint64_t data_seed(const TrainingArguments& args);

}  // namespace megalith::config
