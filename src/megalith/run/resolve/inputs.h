// What a run reads, found before ranks exist: the model, its reference, its data. No record is read and no weight is
// loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "megalith/config/training_arguments.h"
#include "megalith/run/run_plan.h"

namespace megalith::run {

// The folder of a model; without `weights`, config.json is enough. Throws ConfigError or DataError.
std::filesystem::path find_model(const std::string& path_or_name, bool weights = true);

// The model of a folder and, with finetuning_type lora, the adapter that is trained on it. `args` after derive(), here
// and below; `own`: see OwnParts::family. Throws ConfigError for an adapter that does not exist or does not fit.
ModelPlan model_plan(const std::filesystem::path& folder, const config::TrainingArguments& args,
                     const std::shared_ptr<const model::Family>& own = {});

// Stage dpo: the reference, whose vocabulary must be that of the model. Nothing for other stages. Throws ConfigError or
// DataError.
std::optional<PreferencePlan> preference_plan(const config::TrainingArguments& args, const ModelPlan& model);

// What data is read and collated with. The tokenizer's folder is empty for data that has ids.
struct DataTools {
  std::filesystem::path tokenizer_folder{};
  int64_t vocab_size = 0;                // of the model
  std::filesystem::path cache_folder{};  // of tokens; empty: none are kept
  data::CollateFunction collate{};       // a collator of one's own, for training and evaluation
};
// What a run with the model of a folder reads its data with: the tokenizer beside the weights, the user's cache.
DataTools data_tools(const std::filesystem::path& model_folder, int64_t vocab_size);

// Reads the tokenizer. Throws ConfigError and DataError for a tokenizer, template or dataset name that does not exist.
DataPlan data_plan(const config::TrainingArguments& args, const DataTools& tools);

}  // namespace megalith::run
