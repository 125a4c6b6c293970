// Converts options to the input of the planner.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "megalith/config/training_arguments.h"
#include "megalith/model/families/model_config.h"
#include "megalith/plan/run_shape.h"
#include "megalith/plan/search.h"

namespace megalith::run {

// `model` must outlive the result, and model_overrides have been applied to it. `args` have gone through derive(). With
// finetuning_type lora a new adapter is planned (peft/adapter_sizes.h), with stage dpo pairs and their reference; a
// teacher is read from its config.json. The micro-batches are those of the final global batch. Throws ConfigError with
// every reason why such a run is impossible.
plan::RunShape run_shape(const model::ModelConfig& model, const config::TrainingArguments& args, int world_size,
                         int64_t sequence_length, const plan::Machinery& machinery);

// The same in two steps: first the part that options decide, then what the model, the length and the machines add.
plan::RunShape open_shape(const config::TrainingArguments& args, int world_size);
plan::RunShape closed_shape(plan::RunShape open, const model::ModelConfig& model, int64_t sequence_length,
                            const plan::Machinery& machinery);
// Lets the planner count a teacher, and the student's loss in slices. A teacher in files has only the latter. Does
// nothing if `teacher` is nullptr and not `in_files`.
plan::RunShape with_teacher(plan::RunShape open, std::shared_ptr<const model::ModelConfig> teacher,
                            bool in_files = false);

// Sets the media of the samples of a run, which a plan can only assume: images are squares. By default a model that
// sees has one image per sample, of as many pixels as LLaMA-Factory leaves it (image_max_pixels), and a model that
// hears one sound of 30 seconds, or both as large as the sequence has room for. Throws ConfigError for numbers that are
// not possible, and for media of a kind that the model does not take.
void set_media(plan::RunShape& run, const plan::MediaRequest& media);

// Returns a search over everything that `args` (before derive()) leave open: parallel sizes, virtual stages,
// recomputation. The caller sets the micro-batch, the global batch, the length, the GPUs and their cluster. `model`
// must outlive the request.
plan::SearchRequest search_request(const model::ModelConfig& model, const config::TrainingArguments& args);

}  // namespace megalith::run
