// Finds what a run reads before ranks exist: the model, the reference model or teacher, and the data. Loads no weights
// and reads no records.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "megalith/config/training_arguments.h"
#include "megalith/plan/run_shape.h"
#include "megalith/run/resolve/run_plan.h"

namespace megalith::run {

// Returns the folder of a model. If `weights` is false, config.json is enough. Throws ConfigError or DataError.
std::filesystem::path find_model(const std::string& path_or_name, bool weights = true);

// Plans the model of a folder, its vocabulary and, with finetuning_type lora, its adapter. `args` must be derived, here
// and below; for `own` see OwnParts::family. Throws ConfigError for an adapter that does not exist or does not fit the
// model, and the errors of run_vocabulary. Commands that take token ids need no tokenizer.
//
// The model has no other towers than `towers`.
ModelPlan model_plan(const std::filesystem::path& folder, const config::TrainingArguments& args,
                     const std::shared_ptr<const model::Family>& own = {}, bool reads_tokenizer = true,
                     const model::TowerChoice& towers = {});

// Plans the reference model of stage dpo, which must have the vocabulary of the model; std::nullopt for other stages.
// Throws ConfigError or DataError.
std::optional<PreferencePlan> preference_plan(const config::TrainingArguments& args, const ModelPlan& model);

// Plans the loss of stages rm and cls for a model; std::nullopt for other stages. Throws like label_form.
std::optional<ScoringPlan> scoring_plan(const config::TrainingArguments& args, const model::ModelConfig& model);
// Returns what the scores of a model are for, from its number of labels and its problem type. Throws ConfigError if the
// two do not fit.
data::LabelForm label_form(const model::ModelConfig& model);
// Throws ConfigError if the head of a model that scores sequences would be new: neither the folder, whose configuration
// is `in_files`, nor an adapter has one.
void check_trained_head(const ModelPlan& model, const model::ModelConfig& in_files);
// Returns the id that pads rows of a model that scores sequences, by which transformers finds their last token: that of
// the tokenizer, of config.json, or else the end token; std::nullopt if there is none.
std::optional<int32_t> score_pad(const RunVocabulary& vocabulary, const model::ModelConfig& model);

// Returns the configuration of the teacher as a run builds it, from its config.json alone; nullptr without a teacher.
// Throws ConfigError or DataError.
std::shared_ptr<const model::ModelConfig> teacher_config(const config::TrainingArguments& args);
// Plans the teacher of a student with this model; std::nullopt without one. Throws ConfigError for a teacher with
// another vocabulary, or that the layout of `shape` cannot split, by its name, and for students that see or hear.
std::optional<DistillationPlan> distillation_plan(const config::TrainingArguments& args, const ModelPlan& model,
                                                  const plan::RunShape& shape);

// The tools that turn records into batches.
struct DataTools {
  RunVocabulary vocabulary{};                           // its tokenizer is absent for data that consists of token ids
  std::filesystem::path cache_folder{};                 // keeps tokens between runs; if empty, they are not kept
  data::CollateFunction collate{};                      // the program's own collator, for training and evaluation
  std::optional<data::MediaSettings> media{};           // how media become tokens; std::nullopt: the model takes none
  std::optional<layout::PositionSettings> positions{};  // how positions of media count, with `media`
  data::LabelForm labels{};                             // the labels that stage cls takes
  // The result of score_pad() in stages rm and cls; std::nullopt for a value head, which scores the end of any text.
  std::optional<int32_t> score_pad{};
};
// Returns the tools for a vocabulary, with the user's cache.
DataTools data_tools(RunVocabulary vocabulary);

// Plans the data. Throws ConfigError or DataError for a missing tokenizer, template or dataset.
DataPlan data_plan(const config::TrainingArguments& args, const DataTools& tools);
// Plans the order and the padding of samples that the program itself brings (RunRequest::own_datasets). Throws
// ConfigError for options about datasets, which would have no effect.
DataPlan own_data_plan(const config::TrainingArguments& args, const DataTools& tools);

}  // namespace megalith::run
