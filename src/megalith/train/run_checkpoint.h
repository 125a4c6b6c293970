// Turns the state of a run into a checkpoint and back. docs/checkpoint-format.md describes the folder.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megalith/checkpoint/saver.h"
#include "megalith/model/pretrained.h"
#include "megalith/train/report/trainer_state.h"
#include "megalith/train/run_progress.h"
#include "megalith/train/settings/trainer_settings.h"
#include "megalith/train/step/optimized_model.h"

namespace megalith::train {

// Everything that a save point at one step is made of.
struct SavePoint {
  std::filesystem::path folder;  // output_dir/checkpoint-S
  const SaveSettings& settings;
  const TrainerState& state;
  RunProgress progress;  // optimizer, scheduler and scaler are filled in by save_request
  model::Assets assets;  // tokenizer files
};
// Builds the request for a save: the weights under Hugging Face's names in the type that they are trained in; the
// optimizer's state and the random states unless the settings leave them out; and everything else as text. Tensors are
// views: see SaveRequest. Collective; every parameter must have arrived (finish_param_gather).
checkpoint::SaveRequest save_request(OptimizedModel& model, SavePoint point);

// Name of the file in a checkpoint folder that holds the options of the run that saved it.
inline constexpr const char* kArgumentsFile = "args.yaml";
// Names of those with its progress (RunProgress, TrainerState).
inline constexpr const char *kProgressFile = "progress.json", *kTrainerStateFile = "trainer_state.json";

// The state from which a run continues. Small parts are read at once, on every rank; tensors wait until restore(), when
// there is a model to read them into.
struct ResumePoint {
  TrainerState state;
  data::LoaderStart data;
  // Fills optimizer, schedule, loss scale and random states of a model that already has its weights. Collective.
  std::function<void(OptimizedModel&)> restore;
  std::optional<data::SamplerOptions> sampler{};  // the order to which `data` refers; std::nullopt when unknown
  TrainingLog::Totals log{};
  int64_t skipped_samples = 0;
  bool epoch_end_pending = false;
};

// Reads the small files of `folder`; restore() reads the rest. Logs which options have changed since the save. Throws
// DataError for a missing part, naming the option that does without it. Collective.
ResumePoint read_resume_point(const std::filesystem::path& folder, const TrainerSettings& settings,
                              parallel::ParallelContext& context);
// Loads only the weights; for a model with an adapter, only those of the adapter. `keys` says what happens if the
// tensors are not the same ones; those that the checkpoint lacks keep their values. Throws ConfigError, naming each
// size, when the checkpoint's model has another shape.
void load_checkpoint_weights(const model::VirtualModels& models, const std::filesystem::path& folder,
                             const KeyActions& keys);

// Returns "learning_rate: 0.001, now 0.0001" for each option in which two args.yaml differ, except those that say where
// a run writes and what it continues.
std::vector<std::string> changed_options(const std::string& before, const std::string& now);

// Checks that the saved position still refers to the same samples. If it does not, throws ConfigError saying what has
// changed or, with `may_change` (Megatron's datasets grow with the length of the run), logs a warning.
void check_same_data(const ResumePoint& resume, const std::optional<data::Sampler>& now, bool may_change);

}  // namespace megalith::train
