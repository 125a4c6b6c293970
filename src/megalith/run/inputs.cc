#include "megalith/run/inputs.h"

#include <fmt/ranges.h>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/verify.h"
#include "megalith/hf/hub_cache.h"
#include "megalith/model/adapter.h"
#include "megalith/model/auto_model.h"
#include "megalith/model/families/family.h"
#include "megalith/peft/adapter_folder.h"
#include "megalith/run/resolve/adapter_source.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/resolve/preference_settings.h"
#include "megalith/run/resolve/trainer_settings.h"
#include "megalith/train/preference/preference_objective.h"
#include "megalith/train/preference/reference_scores.h"

namespace megalith::run {

namespace {

namespace fs = std::filesystem;

bool has_tokenizer(const fs::path& folder) {
  return fs::exists(folder / "tokenizer.json") || fs::exists(folder / "vocab.json") ||
         fs::exists(folder / "tokenizer.model");
}

// Where things are kept between runs; all ranks of a machine share it. Empty: nowhere.
fs::path cache_for(const char* what) {
  if (const auto folder = env_string("XDG_CACHE_HOME")) return fs::path(*folder) / "megalith" / what;
  if (const auto home = env_string("HOME")) return fs::path(*home) / ".cache" / "megalith" / what;
  return {};
}

fs::path find_reference(const config::TrainingArguments& args, const fs::path& policy_folder, int64_t vocab_size) {
  const auto& name = args.preference.ref_model;
  if (!name) return policy_folder;
  const fs::path folder = hf::find_model_folder(*name, hf::HubEnvironment::from_process());
  const int64_t size = model::read_model_config(folder).vocab_size;
  check<ConfigError>(size == vocab_size,
                     "ref_model {} has a vocabulary of {} ids, and the model that is trained one of {}: they do not"
                     " read the same tokens. Give a reference with the model's tokenizer",
                     *name, size, vocab_size);
  return folder;
}

// What derive() does where the number of experts is an option.
void fit_to_experts(config::TrainingArguments& args, const model::ModelConfig& config) {
  if (!config.moe) return;
  const auto found = nn::problems(*config.moe, args.parallel.ep.value_or(1), args.parallel.etp.value_or(1));
  check<ConfigError>(found.empty(), "{}", fmt::join(found, "; "));
  if (args.parallel.tp.value_or(1) == 1 || args.parallel.sequence_parallel) return;
  args.parallel.sequence_parallel = true;
  log_warning("sequence_parallel is switched on: experts with tensor_model_parallel_size > 1 need it");
}

void check_kind(const fs::path& checkpoint, bool lora) {
  const bool adapter = peft::is_adapter_folder(checkpoint);
  check<ConfigError>(adapter == lora, "the checkpoint {} holds {}; continue it with finetuning_type {}",
                     checkpoint.string(), adapter ? "an adapter" : "a whole model", adapter ? "lora" : "full");
}

bool has_fresh_reference(const config::TrainingArguments& args) {
  return args.source.train_from_scratch && !args.preference.ref_model;
}

// What lies below the adapter that is trained, or what ref_model_adapters names.
std::vector<fs::path> find_reference_adapters(const config::TrainingArguments& args) {
  if (!args.preference.ref_model) return trains_adapter(args) ? adapter_source(args).merged : std::vector<fs::path>{};
  std::vector<fs::path> found;
  for (const std::string& name : args.preference.ref_model_adapters)
    found.push_back(peft::find_adapter(name, args.lora.adapter_folder.value_or("")));
  return found;
}

std::unique_ptr<train::ReferenceModel> load_reference(const TrainingInputs& inputs,
                                                      const config::TrainingArguments& args,
                                                      parallel::ParallelContext& context) {
  const fs::path& folder = inputs.reference_folder;
  const model::ModelSettings settings = model_settings(args, context.device());
  model::VirtualModels models = has_fresh_reference(args)
                                    ? model::AutoModel::from_config(model::read_model_config(folder), settings, context)
                                    : model::AutoModel::from_pretrained(folder.string(), settings, context);
  for (const fs::path& adapter : inputs.reference_adapters) model::merge_adapter(models, adapter);
  return std::make_unique<train::ReferenceModel>(std::move(models), step_settings(args));
}

}  // namespace

TrainingInputs check_inputs(config::TrainingArguments& args) {
  TrainingInputs inputs;
  check<ConfigError>(args.source.model_name_or_path.has_value(),
                     "model_name_or_path is missing: a folder with config.json and safetensors files, or a hub name");
  inputs.model_folder = find_model(*args.source.model_name_or_path, args);
  const model::ModelConfig config = model::read_model_config(inputs.model_folder);
  fit_to_experts(args, config);
  if (trains_adapter(args)) model::adapter_config(adapter_source(args), config);
  if (has_tokenizer(inputs.model_folder)) inputs.tools.tokenizer_folder = inputs.model_folder;
  inputs.tools.vocab_size = config.vocab_size;
  inputs.tools.cache_folder = cache_for("tokens");
  if (args.run.stage == config::Stage::kDpo) {
    inputs.reference_folder = find_reference(args, inputs.model_folder, config.vocab_size);
    inputs.reference_cache = cache_for("reference");
    inputs.reference_adapters = find_reference_adapters(args);
  }
  data_request(args, inputs.tools);
  return inputs;
}

fs::path find_model(const std::string& path_or_name, const config::TrainingArguments& args) {
  return hf::find_model_folder(
      path_or_name, hf::HubEnvironment::from_process(),
      args.source.train_from_scratch ? hf::ModelParts::kConfig : hf::ModelParts::kConfigAndWeights);
}

model::VirtualModels load_model(const fs::path& folder, const config::TrainingArguments& args,
                                parallel::ParallelContext& context, const std::optional<fs::path>& checkpoint) {
  if (checkpoint) check_kind(*checkpoint, trains_adapter(args));
  const model::ModelSettings settings = model_settings(args, context.device());
  if (trains_adapter(args)) {
    model::AdapterSource source = adapter_source(args, checkpoint);
    source.keep_base = args.run.stage == config::Stage::kDpo && config::needs_reference(args.preference.loss);
    return model::with_adapter(folder, settings, context, source);
  }
  if (!checkpoint && !args.source.train_from_scratch)
    return model::AutoModel::from_pretrained(folder.string(), settings, context);
  const model::ModelConfig config = model::read_model_config(folder);
  return checkpoint ? model::AutoModel::with_weights(config, *checkpoint, settings, context)
                    : model::AutoModel::from_config(config, settings, context);
}

void precompute_reference(const TrainingInputs& inputs, const config::TrainingArguments& args,
                          parallel::ParallelContext& context, RunData& data) {
  if (args.run.stage != config::Stage::kDpo || !args.preference.precompute_ref_log_probs) return;
  train::ReferenceCache cache{inputs.reference_cache, inputs.reference_folder, inputs.reference_adapters,
                              model_settings(args, context.device()).options.dtype};
  if (has_fresh_reference(args)) cache.folder.clear();  // its weights are in no file that could be named
  train::precompute_reference_scores(
      data.train, data.eval, [&] { return load_reference(inputs, args, context); }, cache,
      trainer_settings(args, context.grid().shape()).eval.micro_batch_size, context);
}

std::unique_ptr<train::Objective> preference_objective(const TrainingInputs& inputs,
                                                       const config::TrainingArguments& args,
                                                       model::VirtualModels& policy) {
  if (args.run.stage != config::Stage::kDpo) return nullptr;
  const config::PreferenceConfig& how = args.preference;
  std::unique_ptr<train::ReferenceModel> reference;
  if (config::needs_reference(how.loss) && !how.precompute_ref_log_probs)
    reference = trains_adapter(args) && !how.ref_model
                    ? train::ReferenceModel::below_adapter(policy, step_settings(args))
                    : load_reference(inputs, args, policy.context());
  return std::make_unique<train::PreferenceObjective>(preference_settings(how), policy.context(), std::move(reference));
}

void check_resume(const config::SaveConfig& save) {
  if (!save.resume_from_checkpoint) return;
  const auto folder = checkpoint::find_checkpoint(*save.resume_from_checkpoint, save.output_dir.value_or("."));
  if (!folder || to_lower(*save.resume_from_checkpoint) == "auto") return;
  const auto problems = checkpoint::problems_of_sizes(*folder, checkpoint::read_manifest(*folder));
  check<DataError>(problems.empty(), "{} is broken: {}", folder->string(), list_in_words(problems, 8));
}

std::optional<fs::path> find_resume(const config::SaveConfig& save, const parallel::ParallelContext& context) {
  if (!save.resume_from_checkpoint) return std::nullopt;
  const checkpoint::ResumeChoice choice =
      checkpoint::choose_checkpoint(*save.resume_from_checkpoint, save.output_dir.value_or("."), context);
  if (context.rank() == 0) {
    for (const std::string& skipped : choice.skipped) log_warning("{}", skipped);
    if (!choice.folder) log_info("there is no checkpoint to continue: the run starts afresh");
  }
  return choice.folder;
}

}  // namespace megalith::run
