// Builds the model of a run, the reference of preference training or the teacher of distillation, and the objective.
//
//   adapter  checkpoint  from scratch   weights
//   yes      any         any            the base of the folder; the adapter of the checkpoint, of its folder, or fresh
//   no       yes         any            those of the checkpoint
//   no       no          yes            initialized
//   no       no          no             those of the folder
#include "megalith/run/load_model.h"

#include <fmt/ranges.h>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/model/adapter.h"
#include "megalith/model/auto_model.h"
#include "megalith/model/families/family.h"
#include "megalith/model/quantized/quantized_weights.h"
#include "megalith/model/weight_check.h"
#include "megalith/peft/adapter_folder.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/train/distillation/distillation_objective.h"
#include "megalith/train/distillation/file_objective.h"
#include "megalith/train/preference/kto_objective.h"
#include "megalith/train/preference/preference_objective.h"
#include "megalith/train/preference/reference_scores.h"
#include "megalith/train/scoring/label_objective.h"
#include "megalith/train/scoring/reward_objective.h"

namespace megalith::run {

namespace {

namespace fs = std::filesystem;

// An adapter cannot continue as a whole model, nor the other way around: their optimizer states differ.
void check_kind(const fs::path& checkpoint, bool lora) {
  const bool adapter = peft::is_adapter_folder(checkpoint);
  check<ConfigError>(adapter == lora, "the checkpoint {} holds {}; continue it with finetuning_type {}",
                     checkpoint.string(), adapter ? "an adapter" : "a whole model",
                     adapter ? "lora" : "full or freeze");
}

// Describes the rows that a model has beyond its files, on which its outputs depend; empty if there are none.
std::string new_rows_of(const RunPlan& plan) {
  const RunVocabulary& vocabulary = plan.model.vocabulary;
  if (!vocabulary.has_new_rows()) return {};
  return fmt::format("{} rows, new tokens {}, seed {}", vocabulary.size, fmt::join(vocabulary.new_tokens, " "),
                     plan.settings.model.seed);
}

// Loads in the layout of the policy, so that the same micro-batches run through both.
std::unique_ptr<train::ReferenceModel> load_reference(const PreferencePlan& plan, const RunSettings& run,
                                                      parallel::ParallelContext& context) {
  const model::ModelSettings settings = reference_settings(settings_on(run.model, context.device()));
  model::VirtualModels models =
      plan.fresh ? model::AutoModel::from_config(model::read_model_config(plan.folder), settings, context)
                 : model::AutoModel::from_pretrained(plan.folder.string(), settings, context);
  for (const fs::path& adapter : plan.adapters) model::merge_adapter(models, adapter);
  return std::make_unique<train::ReferenceModel>(std::move(models), run.trainer.step, plan.loss.ld_alpha);
}

std::unique_ptr<train::Objective> make_distillation(const DistillationPlan& plan, const RunSettings& run,
                                                    parallel::ParallelContext& context) {
  if (!plan.files.empty())
    return std::make_unique<train::FileDistillationObjective>(plan.loss, train::read_teacher_index(plan.files));
  return std::make_unique<train::DistillationObjective>(plan.loss, load_teacher(plan, run, context));
}

}  // namespace

model::VirtualModels load_model(const ModelPlan& plan, const model::ModelSettings& settings,
                                parallel::ParallelContext& context, const std::optional<fs::path>& checkpoint) {
  if (checkpoint) check_kind(*checkpoint, plan.adapter.has_value());
  if (checkpoint && !plan.adapter) model::check_same_model(*checkpoint, plan.config);
  model::ModelSettings here = settings_on(settings, context.device());
  // The rows of a checkpoint are trained already; only those beyond its vocabulary are new. A base below an adapter
  // starts like that of the run that wrote the checkpoint.
  if (checkpoint && !plan.adapter) here.new_tokens.clear();
  const std::shared_ptr<const model::Family>& own = plan.config.own_family;
  if (plan.adapter) {
    const std::optional<ops::QuantizedFormat>& format = here.options.quantization;
    const std::string note = format ? model::not_quantized(plan.config, ops::bits_of(*format)) : "";
    if (!note.empty() && context.rank() == 0) log_warning("{}", note);
    model::AdapterSource source = *plan.adapter;
    if (checkpoint) source.trained = *checkpoint;
    return model::with_adapter(plan.folder, here, context, source, own);
  }
  // The common case goes through the public entry point. The others need a config of their own.
  if (!checkpoint && !plan.fresh && !own) return model::AutoModel::from_pretrained(plan.folder.string(), here, context);
  const model::ModelConfig config = model::read_model_config(plan.folder, own);
  if (!checkpoint && plan.fresh) return model::AutoModel::from_config(config, here, context);
  return model::AutoModel::with_weights(config, checkpoint ? *checkpoint : plan.folder, here, context);
}

void precompute_reference(const RunPlan& plan, parallel::ParallelContext& context, RunData& data) {
  if (!plan.preference || plan.preference->reference != PreferencePlan::Reference::kPrecomputed) return;
  const PreferencePlan& preference = *plan.preference;
  train::ReferenceCache cache{preference.cache,    preference.folder,
                              preference.adapters, plan.settings.model.options.dtype,
                              new_rows_of(plan),   preference.loss.ld_alpha};
  if (preference.fresh) cache.folder.clear();  // initialized weights are in no file that could identify them
  train::precompute_reference_scores(
      data.train, data.eval, [&] { return load_reference(preference, plan.settings, context); }, cache,
      plan.settings.trainer.eval.micro_batch_size, context);
}

std::unique_ptr<train::TeacherModel> load_teacher(const DistillationPlan& plan, const RunSettings& run,
                                                  parallel::ParallelContext& context) {
  const model::ModelSettings settings = teacher_settings(settings_on(run.model, context.device()));
  return std::make_unique<train::TeacherModel>(
      model::AutoModel::from_pretrained(plan.folder.string(), settings, context), run.trainer.step);
}

// nullptr means the trainer's own objective, next-token prediction.
std::unique_ptr<train::Objective> make_objective(const ScoringPlan& plan, const parallel::ParallelContext& context) {
  if (plan.rewards) return std::make_unique<train::RewardObjective>(*plan.rewards, context);
  return std::make_unique<train::LabelObjective>(*plan.labels, context);
}

std::unique_ptr<train::Objective> make_objective(const RunPlan& plan, model::VirtualModels& policy) {
  if (plan.own.objective) return plan.own.objective(policy);
  if (plan.distillation) return make_distillation(*plan.distillation, plan.settings, policy.context());
  if (plan.scoring) return make_objective(*plan.scoring, policy.context());
  if (!plan.preference) return nullptr;
  std::unique_ptr<train::ReferenceModel> reference;
  if (plan.preference->reference == PreferencePlan::Reference::kBelowAdapter)
    reference =
        train::ReferenceModel::below_adapter(policy, plan.settings.trainer.step, plan.preference->loss.ld_alpha);
  else if (plan.preference->reference == PreferencePlan::Reference::kModel)
    reference = load_reference(*plan.preference, plan.settings, policy.context());
  if (plan.preference->kto)
    return std::make_unique<train::KtoObjective>(*plan.preference->kto, policy, plan.settings.trainer.step,
                                                 std::move(reference));
  return std::make_unique<train::PreferenceObjective>(plan.preference->loss, policy.context(), std::move(reference));
}

}  // namespace megalith::run
