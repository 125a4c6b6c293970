// From options to what the planner computes with.
#pragma once

#include <cstdint>

#include "megalith/config/training_arguments.h"
#include "megalith/model/families/model_config.h"
#include "megalith/plan/run_shape.h"
#include "megalith/plan/search.h"

namespace megalith::run {

// `model` outlives the result; it has had the arguments' say (model_overrides). `args` after derive(); with
// finetuning_type lora a new adapter is planned (peft/adapter_sizes.h), with stage dpo pairs and their reference. The
// micro-batches are those of the final global batch. Throws ConfigError with every reason why there is no such run.
plan::RunShape run_shape(const model::ModelConfig& model, const config::TrainingArguments& args, int world_size,
                         int64_t sequence_length, const plan::Machinery& machinery);

// The same in two steps: what options decide, then what the model, the length and the machines add.
plan::RunShape open_shape(const config::TrainingArguments& args, int world_size);
plan::RunShape closed_shape(plan::RunShape open, const model::ModelConfig& model, int64_t sequence_length,
                            const plan::Machinery& machinery);

// A search over what `args`, before derive(), do not give: parallel sizes, virtual stages, recomputation. The
// micro-batch, the global batch, the length, the GPUs and their cluster are the caller's to set. `model` outlives the
// request.
plan::SearchRequest search_request(const model::ModelConfig& model, const config::TrainingArguments& args);

}  // namespace megalith::run
