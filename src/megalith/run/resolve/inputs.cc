// Finds everything a fine-tuning run reads: folders of models, references, adapters, tokenizers and data. Only small
// files are read (config.json, headers, dataset_info.json), so that a mistake is reported within seconds and before
// ranks exist.
#include "megalith/run/resolve/inputs.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/config/derive.h"
#include "megalith/data/sft/dataset_info.h"
#include "megalith/data/sft/record_encoder.h"
#include "megalith/hf/hub_cache.h"
#include "megalith/model/families/family.h"
#include "megalith/model/families/scores.h"
#include "megalith/model/families/value_head.h"
#include "megalith/peft/adapter_folder.h"
#include "megalith/run/resolve/adapter_source.h"
#include "megalith/run/resolve/data_settings.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/resolve/preference_settings.h"
#include "megalith/run/resolve/run_shape.h"
#include "megalith/run/resolve/trainer_settings.h"
#include "megalith/train/distillation/file_objective.h"

namespace megalith::run {

namespace {

namespace fs = std::filesystem;
using config::TrainingArguments;

// Returns a folder kept between runs and shared by all ranks of a machine; empty if the machine has no place for it. A
// home that cannot be written, which is usual in containers, costs only what the folder would have saved.
fs::path cache_for(const std::string& what) {
  fs::path folder;
  if (const auto cache = env_string("XDG_CACHE_HOME"))
    folder = fs::path(*cache) / "megalith" / what;
  else if (const auto home = env_string("HOME"))
    folder = fs::path(*home) / ".cache" / "megalith" / what;
  if (folder.empty()) return {};
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error && ::access(folder.c_str(), W_OK | X_OK) != 0) error = std::error_code(errno, std::generic_category());
  if (!error) return folder;
  log_warning(
      "{} cannot be written ({}), so that the next run computes its {} again; set XDG_CACHE_HOME to another folder",
      folder.string(), error.message(), what);
  return {};
}

// Returns the folder of the reference model: that of ref_model, or of the policy.
fs::path find_reference(const TrainingArguments& args, const ModelPlan& model) {
  const auto& name = args.preference.ref_model;
  if (!name) return model.folder;
  const fs::path folder = find_model(*name);
  // The reference may have the vocabulary before or after growth; the former grows by the same rule.
  const int64_t size = model::read_model_config(folder).vocab_size;
  check<ConfigError>(size == model.config.vocab_size || size == model.vocabulary.size_in_files,
                     "ref_model {} has a vocabulary of {} ids, and the model that is trained one of {}: they do not"
                     " read the same tokens. Give a reference with the model's tokenizer",
                     *name, size, model.config.vocab_size);
  return folder;
}

// Returns the adapters below the one that is trained, or those that ref_model_adapters names.
std::vector<fs::path> find_reference_adapters(const TrainingArguments& args, const ModelPlan& model) {
  if (!args.preference.ref_model) return model.adapter ? model.adapter->merged : std::vector<fs::path>{};
  std::vector<fs::path> found;
  for (const std::string& name : args.preference.ref_model_adapters)
    found.push_back(peft::find_adapter(name, args.lora.adapter_folder.value_or("")));
  return found;
}

// The reference costs nothing below an adapter (its base is the same weights) or when its scores are precomputed.
PreferencePlan::Reference reference_of(config::Stage stage, const config::PreferenceConfig& how,
                                       const ModelPlan& model) {
  using Reference = PreferencePlan::Reference;
  if (how.precompute_ref_log_probs) return Reference::kPrecomputed;
  if (!config::needs_reference(stage, how.loss)) return Reference::kNone;
  return model.adapter && !how.ref_model ? Reference::kBelowAdapter : Reference::kModel;
}

// Returns a teacher's configuration: that of its files, apart from parts that it does not use.
model::ModelConfig teacher_config_in(const fs::path& folder) {
  return teacher_settings({}).overrides.applied_to(model::read_model_config(folder));
}

// Plans a teacher in files; std::nullopt without one. The files are compared with the data once that is tokenized.
std::optional<DistillationPlan> file_plan(const config::DistillationConfig& how, const ModelPlan& model) {
  if (!how.files) return std::nullopt;
  DistillationPlan plan{.loss = distillation_settings(how), .folder = {}, .files = *how.files};
  check<ConfigError>(!model.config.vision && !model.config.audio,
                     "teacher_logits_path: a teacher reads text only, but this run trains a model that sees or hears."
                     " Use data without media, or leave the files out");
  const train::TeacherIndex index = train::read_teacher_index(plan.files);
  check<ConfigError>(index.vocab_size == model.config.vocab_size,
                     "teacher_logits_path {} is for a vocabulary of {} ids (teacher {}), and the model that is trained"
                     " has {}: their distributions cannot be compared. Use files of a teacher with the model's"
                     " vocabulary",
                     plan.files.string(), index.vocab_size, index.teacher, model.config.vocab_size);
  train::check_teacher_index(index, plan.loss);
  return plan;
}

// Rows are padded to a multiple of what splits them along the tokens.
data::CollatorOptions padding_for(const TrainingArguments& args, data::SampleKind kind, int32_t pad_id) {
  data::CollatorOptions options = data::collator_options(kind, pad_id);
  options.tp = args.parallel.sequence_parallel ? args.parallel.tp.value_or(1) : 1;
  options.cp = args.parallel.cp.value_or(1);
  return options;
}

// Takes what does not depend on where samples come from.
void take_order(const TrainingArguments& args, const DataTools& tools, DataPlan& plan) {
  plan.collate = tools.collate;
  plan.order = epoch_sampler(args.sampler, /*size=*/0, config::data_seed(args));
  plan.trains = config::trains(args.run);
}

// Checks the choice of finetuning_type freeze. New rows of the vocabulary would keep their initial values if embedding
// and head were frozen.
void check_trained_layers(const TrainingArguments& args, const model::ModelConfig& config,
                          const RunVocabulary& vocabulary) {
  const auto choice = model_options(args, at::kCPU).trained_layers;
  if (!choice) return;
  model::check_layer_choice(*choice, config, model::global_tensors(config));
  const model::TrainedLayers trained(*choice, config);
  for (const char* weight : {"embedding.weight", "head.weight"})
    check<ConfigError>(!vocabulary.has_new_rows() || !model::has_vocabulary_rows(weight, config) ||
                           (config.tied_embeddings && std::string_view(weight) == "head.weight") ||
                           trained.trains(weight),
                       "the vocabulary has new rows, which finetuning_type freeze leaves at their initial values; name"
                       " embedding and head ({}) in freeze_extra_modules",
                       fmt::join(model::vocabulary_modules(config), ", "));
}

// An adapter of a language model would leave the new head at its initial values.
void check_score_head(const model::AdapterSource& adapter) {
  if (!adapter.trained || model::has_value_head(*adapter.trained)) return;
  const auto& saved = peft::read_adapter_config(*adapter.trained).modules_to_save;
  check<ConfigError>(
      std::ranges::find(saved, model::kScoreModule) != saved.end(),
      "the adapter {} has no head that scores sequences (modules_to_save has no {}), so that of the model"
      " would not be trained; set create_new_adapter to merge it and to train a new one",
      adapter.trained->string(), model::kScoreModule);
}

}  // namespace

fs::path find_model(const std::string& path_or_name, bool weights) {
  return hf::find_model_folder(path_or_name, hf::HubEnvironment::from_process(),
                               weights ? hf::ModelParts::kConfigAndWeights : hf::ModelParts::kConfig);
}

ModelPlan model_plan(const fs::path& folder, const TrainingArguments& args,
                     const std::shared_ptr<const model::Family>& own, bool reads_tokenizer,
                     const model::TowerChoice& towers) {
  const model::ModelOverrides overrides = model_overrides(args);
  model::ModelConfig in_files = model::with_towers(model::read_model_config(folder, own), towers);
  ModelPlan plan{.folder = folder, .config = overrides.applied_to(in_files), .fresh = args.source.train_from_scratch};
  // Below, `in_files` answers which modules the model has.
  if (overrides.scores) in_files = model::with_scores(std::move(in_files), *overrides.scores);
  if (trains_adapter(args)) plan.adapter = adapter_source(args);
  if (plan.adapter && overrides.scores) {
    check_score_head(*plan.adapter);
    for (model::ModelConfig* config : {&plan.config, &in_files})
      *config = model::with_head_of(*plan.adapter, std::move(*config));
  }
  plan.vocabulary = run_vocabulary(args, folder, in_files, plan.adapter, reads_tokenizer);
  plan.config.vocab_size = plan.vocabulary.size;
  check_trained_layers(args, in_files, plan.vocabulary);
  if (!plan.adapter) return plan;
  if (const auto excluded = model::excluded_modules(in_files, model_options(args, at::kCPU).freeze); !excluded.empty())
    plan.adapter->fresh.exclude_pattern = peft::NamePattern::whole(excluded);
  // The base serves as the reference, so modules that are trained in full keep a copy of their first weights.
  plan.adapter->keep_base = config::needs_reference(args.run.stage, args.preference.loss);
  const auto adapter = model::adapter_config(*plan.adapter, in_files);  // throws for targets that the model lacks
  check<ConfigError>(!adapter.pissa || !plan.adapter->keep_base || args.preference.ref_model ||
                         args.preference.precompute_ref_log_probs,
                     "the adapter started from principal parts (init_lora_weights pissa), so the base below it is not"
                     " the reference; set ref_model to the model, or precompute_ref_log_probs");
  train_new_rows(plan.vocabulary, plan.config, *plan.adapter);
  return plan;
}

std::optional<PreferencePlan> preference_plan(const TrainingArguments& args, const ModelPlan& model) {
  const bool verdicts = args.run.stage == config::Stage::kKto;
  if (args.run.stage != config::Stage::kDpo && !verdicts) return std::nullopt;
  return PreferencePlan{.loss = preference_settings(args.preference),
                        .kto = verdicts ? std::optional(kto_settings(args.preference)) : std::nullopt,
                        .reference = reference_of(args.run.stage, args.preference, model),
                        .folder = find_reference(args, model),
                        .adapters = find_reference_adapters(args, model),
                        .fresh = model.fresh && !args.preference.ref_model,
                        .cache = cache_for("reference")};
}

std::optional<ScoringPlan> scoring_plan(const TrainingArguments& args, const model::ModelConfig& model) {
  if (args.run.stage == config::Stage::kReward) return ScoringPlan{.rewards = reward_settings(args.scoring)};
  if (args.run.stage != config::Stage::kClassify) return std::nullopt;
  return ScoringPlan{.labels = train::LabelSettings{.problem = label_form(model).problem}};
}

data::LabelForm label_form(const model::ModelConfig& model) {
  using config::ProblemType;
  data::LabelForm form{.num_labels = model.num_labels};
  form.problem = model.num_labels == 1 ? ProblemType::kRegression : ProblemType::kSingleLabel;
  if (const auto named = config::choice_of<ProblemType>(model.problem_type)) form.problem = *named;
  check<ConfigError>(form.problem != ProblemType::kRegression || form.num_labels == 1,
                     "problem_type regression predicts one number, and the model has {} labels; use num_labels 1",
                     form.num_labels);
  check<ConfigError>(form.problem != ProblemType::kSingleLabel || form.num_labels > 1,
                     "the model has one label; problem_type single_label_classification needs at least 2");
  check<ConfigError>(form.problem != ProblemType::kMultiLabel || form.num_labels <= config::kMostLabelsAtOnce,
                     "the model has {} labels; problem_type multi_label_classification takes at most {}",
                     form.num_labels, config::kMostLabelsAtOnce);
  return form;
}

void check_trained_head(const ModelPlan& model, const model::ModelConfig& in_files) {
  const bool has_head = in_files.num_labels > 0 || model::score_bias(model.config) || model.adapter;
  check<ConfigError>(has_head,
                     "{} predicts tokens, so a head for scores would be new and untrained; give a model that stage rm"
                     " or cls has trained",
                     model.folder.string());
}

std::optional<int32_t> score_pad(const RunVocabulary& vocabulary, const model::ModelConfig& model) {
  if (vocabulary.tokenizer && vocabulary.tokenizer->pad_id()) return vocabulary.tokenizer->pad_id();
  const io::Json* in_files = model::config_value(model, "pad_token_id");
  if (in_files != nullptr && in_files->is_number_integer()) return in_files->get<int32_t>();
  return vocabulary.tokenizer ? vocabulary.tokenizer->eos_id() : std::nullopt;
}

std::shared_ptr<const model::ModelConfig> teacher_config(const TrainingArguments& args) {
  const auto& name = args.distillation.teacher;
  if (!name) return nullptr;
  return std::make_shared<const model::ModelConfig>(teacher_config_in(find_model(*name, /*weights=*/false)));
}

std::optional<DistillationPlan> distillation_plan(const TrainingArguments& args, const ModelPlan& model,
                                                  const plan::RunShape& shape) {
  const auto& name = args.distillation.teacher;
  if (!name) return file_plan(args.distillation, model);
  DistillationPlan plan{.loss = distillation_settings(args.distillation), .folder = find_model(*name)};
  plan.config = std::make_shared<const model::ModelConfig>(teacher_config_in(plan.folder));
  check<ConfigError>(!model.config.vision && !model.config.audio,
                     "teacher_model_name_or_path: a teacher reads text only, but this run trains a model that sees or"
                     " hears. Use data without media, or leave the teacher out");
  check<ConfigError>(
      plan.config->vocab_size == model.config.vocab_size,
      "teacher_model_name_or_path {} has a vocabulary of {} ids, and the model that is trained one of {}:"
      " their distributions cannot be compared. Give a teacher with the model's vocabulary",
      *name, plan.config->vocab_size, model.config.vocab_size);
  const auto problems = plan::teacher_problems(with_teacher(shape, plan.config));
  check<ConfigError>(problems.empty(), "teacher_model_name_or_path {} is split like the model that is trained: {}",
                     *name, fmt::join(problems, "; "));
  return plan;
}

DataTools data_tools(RunVocabulary vocabulary) {
  return {.vocabulary = std::move(vocabulary), .cache_folder = cache_for("tokens")};
}

DataPlan data_plan(const TrainingArguments& args, const DataTools& tools) {
  DataPlan plan;
  data::DataRequest& request = plan.request;
  request.data = sft_settings(args);
  request.seed = config::data_seed(args);
  request.vocab_size = tools.vocabulary.size;
  request.cache_folder = tools.cache_folder;
  request.tokenizer = tools.vocabulary.tokenizer;
  request.tokenizer_folder = tools.vocabulary.tokenizer_folder;
  request.changed_tokenizer_files = tools.vocabulary.changed_files;
  request.media = tools.media;
  request.labels = tools.labels;
  request.score_pad = tools.score_pad;
  // The encoder knows the columns it needs; a dataset without them is reported before anything is tokenized.
  const auto encoder = data::make_record_encoder(request);
  for (const auto* names : {&args.data.dataset, &args.data.eval_dataset})
    for (const auto& dataset : data::find_datasets(*names, args.data.dataset_dir)) encoder->check_dataset(dataset);
  plan.collator = padding_for(args, request.data.kind, encoder->pad_id());
  if (tools.media) {
    plan.collator.images = tools.media->images;
    plan.collator.videos = tools.media->videos;
    plan.collator.sounds = tools.media->sounds;
    plan.collator.positions = tools.positions;
  }
  plan.streams = args.data.streaming;
  take_order(args, tools, plan);
  return plan;
}

DataPlan own_data_plan(const TrainingArguments& args, const DataTools& tools) {
  check<ConfigError>(
      args.data.dataset.empty() && args.data.eval_dataset.empty() && !args.data.tokenized_path,
      "the program brings its own data, so dataset, eval_dataset and tokenized_path would have no effect;"
      " leave them out");
  check<ConfigError>(!args.data.streaming && args.data.val_size == 0 && !args.data.max_samples,
                     "the program brings its own data, so streaming, val_size and max_samples would have no effect;"
                     " leave them out");
  DataPlan plan;
  plan.request.data = sft_settings(args);
  const auto& tokenizer = tools.vocabulary.tokenizer;
  // Padding has no label, so any id will do.
  const int32_t pad = tokenizer ? tokenizer->pad_id().value_or(tokenizer->eos_id().value_or(0)) : 0;
  plan.collator = padding_for(args, plan.request.data.kind, pad);
  // Samples stay as the program makes them: packing means that rows are not padded, and do not attend to one another.
  if (args.data.packing.value_or(false) || args.data.neat_packing || args.data.sequence_packing)
    plan.collator.padding = data::Padding::kNone;
  take_order(args, tools, plan);
  return plan;
}

}  // namespace megalith::run
