// From a run to a checkpoint and back. The folder is described in docs/checkpoint-format.md.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megalith/checkpoint/saver.h"
#include "megalith/train/report/trainer_state.h"
#include "megalith/train/run_progress.h"
#include "megalith/train/settings/trainer_settings.h"
#include "megalith/train/step/optimized_model.h"

namespace megalith::train {

// What a run leaves to itself at a step.
struct SavePoint {
  std::filesystem::path folder;  // output_dir/checkpoint-S
  const SaveSettings& settings;
  const TrainerState& state;
  RunProgress progress;          // its optimizer, scheduler and scaler are filled in by save_request
  std::filesystem::path assets;  // folder with tokenizer files; empty: none
};
// Weights under Hugging Face's names in the type that they are trained in; unless the settings leave them out, the
// optimizer's state and the random states; all the rest as text. Views: see SaveRequest. All ranks call it; every
// parameter is there (finish_param_gather).
checkpoint::SaveRequest save_request(OptimizedModel& model, SavePoint point);

// The options of the run that saved, in the folder of a checkpoint.
inline constexpr const char* kArgumentsFile = "args.yaml";

// Where a run goes on.
struct ResumePoint {
  TrainerState state;
  data::LoaderStart data;
  // Fills optimizer, schedule, loss scale and random states of a model that has its weights; collective.
  std::function<void(OptimizedModel&)> restore;
  std::optional<data::SamplerOptions> sampler{};  // in whose order `data` is; nothing: not known
  TrainingLog::Totals log{};
  int64_t skipped_samples = 0;
  bool epoch_end_pending = false;
};

// Reads the small files of `folder`; restore() reads the rest. Says which options have changed since. Throws DataError
// for what is missing, saying which option does without. All ranks call it.
ResumePoint read_resume_point(const std::filesystem::path& folder, const TrainerSettings& settings,
                              parallel::ParallelContext& context);
// The weights alone: of a model with an adapter, the adapter's. Throws ConfigError when the checkpoint's model has
// another shape, naming each size.
void load_checkpoint_weights(const model::VirtualModels& models, const std::filesystem::path& folder, uint64_t seed);

// "learning_rate: 0.001, now 0.0001" for each option of two args.yaml that differs; where a run writes and what it
// continues is left out.
std::vector<std::string> changed_options(const std::string& before, const std::string& now);

// Checks that the position means the same samples as when it was saved. Throws ConfigError saying what has changed, or,
// where the data may change (Megatron's datasets grow with the length of the run), warns.
void check_same_data(const ResumePoint& resume, const std::optional<data::Sampler>& now, bool may_change);

}  // namespace megalith::train
