// What a fine-tuning run or an evaluation reads: looked for before ranks exist, so that what is missing is told once.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "megalith/config/training_arguments.h"
#include "megalith/model/virtual_models.h"
#include "megalith/run/run_data.h"
#include "megalith/train/objectives/objective.h"

namespace megalith::run {

struct TrainingInputs {
  std::filesystem::path model_folder;
  DataTools tools;
  std::filesystem::path reference_folder;                 // stage dpo: ref_model, or the model's own
  std::vector<std::filesystem::path> reference_adapters;  // that are merged into it
  std::filesystem::path reference_cache;  // where precompute_ref_log_probs keeps what it computes; empty: nowhere
};

// Finds model, reference, tokenizer, template and datasets. Throws ConfigError or DataError for the first that is not
// there or not understood, and for a layout that the model's experts do not fit. No record is read, no weight is
// loaded. `args`, after derive(), learn what the model asks for: experts with tensor parallelism switch
// sequence_parallel on, with a warning.
TrainingInputs check_inputs(config::TrainingArguments& args);

// The folder of a model; with train_from_scratch one without weights will do. Throws ConfigError or DataError.
std::filesystem::path find_model(const std::string& path_or_name, const config::TrainingArguments& args);
// The model of a folder on this rank: its weights, or with train_from_scratch fresh ones; to continue a run, those of
// its checkpoint. With finetuning_type lora it has an adapter: a fresh one, that of adapter_name_or_path, or the
// checkpoint's. All ranks call it.
model::VirtualModels load_model(const std::filesystem::path& folder, const config::TrainingArguments& args,
                                parallel::ParallelContext& context,
                                const std::optional<std::filesystem::path>& checkpoint = std::nullopt);

// Stage dpo with precompute_ref_log_probs: `data` gets what the reference says, and the reference is gone. Nothing
// otherwise. All ranks call it, before the policy takes memory.
void precompute_reference(const TrainingInputs& inputs, const config::TrainingArguments& args,
                          parallel::ParallelContext& context, RunData& data);
// Stage dpo: what is trained, with its reference model where it has one and does not come with the data: the policy as
// it was at the start of the run, the policy below its adapter, or ref_model. nullptr for other stages. `policy`
// outlives it. All ranks call it.
std::unique_ptr<train::Objective> preference_objective(const TrainingInputs& inputs,
                                                       const config::TrainingArguments& args,
                                                       model::VirtualModels& policy);

// resume_from_checkpoint can be what it asks for. Throws ConfigError or DataError, before ranks exist.
void check_resume(const config::SaveConfig& save);
// The checkpoint that the run continues, complete and unchanged; nothing: it starts afresh. Says what it skips and
// takes. All ranks call it.
std::optional<std::filesystem::path> find_resume(const config::SaveConfig& save,
                                                 const parallel::ParallelContext& context);

}  // namespace megalith::run
