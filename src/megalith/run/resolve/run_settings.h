// RunSettings: everything the options decide about a run, with every default resolved. Making it reads no files;
// RunPlan (run_plan.h) adds what files say.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "megalith/config/training_arguments.h"
#include "megalith/data/collator.h"
#include "megalith/data/sampler.h"
#include "megalith/model/model_settings.h"
#include "megalith/observe/report_settings.h"
#include "megalith/parallel/runtime_settings.h"
#include "megalith/plan/run_shape.h"
#include "megalith/run/samples/text_prompts.h"
#include "megalith/train/settings/trainer_settings.h"

namespace megalith::run {

// The ranks of a run.
struct RunWorld {
  int size = 1;
  bool one_machine = true;
};

// The folder of a run's files, and whether it may hold some already.
struct OutputSettings {
  std::filesystem::path folder;  // output_dir; empty if the run writes nothing
  bool overwrites = false;       // a new run may start in a folder that is not empty
  bool continues = false;        // the run resumes an earlier one, so its files are expected
};

// The checkpoint that `pretrain` starts from. Without a folder it starts from random weights.
struct LoadSettings {
  std::optional<std::filesystem::path> folder;      // load: a run or a checkpoint
  std::optional<std::filesystem::path> pretrained;  // pretrained_checkpoint: used if `folder` holds none
  std::optional<int64_t> step;                      // ckpt_step; std::nullopt takes the newest in `folder`
  std::optional<int64_t> counts_from;               // override_ckpt_iteration: the iteration to resume at
  bool weights_only = false;                        // finetune: load weights only, start at iteration 0
  bool must_exist = false;                          // exit_on_missing_checkpoint
  // Non-persistent checkpoints, which compete with those of `folder`; std::nullopt if they are not used.
  std::optional<std::filesystem::path> rolling;
};

// Settings that pretrain() needs in addition to the trainer's settings.
struct PretrainSettings {
  LoadSettings load;
  int num_layers = 0;                   // layers of the whole model; 0 if not given
  int mtp_layers = 0;                   // multi-token-prediction layers
  bool skip_train = false;              // evaluate without training
  int64_t eval_iters = 0;               // global batches per evaluation
  int64_t eval_global_batch_size = 0;   // samples per batch of an evaluation
  std::optional<int64_t> exit_minutes;  // exit_duration_in_mins; std::nullopt: no limit
  int64_t seq_length = 0;               // tokens per sample; 0 if not given
  data::SamplerOptions order;           // order of the samples; its size is set when the data is open
  data::CollatorOptions rows;           // how samples become rows of seq_length tokens
  int64_t padded_vocab_size = 0;        // rows of the embedding; 0: rounded up for vocab_multiple and tp
};

// Command-line flags that are not options: they never change the result of a run.
struct RunSwitches {
  bool force = false;                        // start even if the planned memory exceeds what is free
  bool quiet = false;                        // only warnings, errors and the summary at the end go to stderr
  bool timing = false;                       // report how long each phase of a step takes
  std::optional<observe::TraceSteps> trace;  // steps to record in trace.json; std::nullopt: none
  std::filesystem::path rejection_tracker;   // remembers rejected results across restarts; empty if there is none
};

struct RunSettings {
  bool trains = true;                 // false: it only evaluates
  bool evaluates = false;             // on the evaluation data, at the end at the latest
  int64_t sequence_length = 0;        // tokens of the longest sequence, as far as options tell
  parallel::RuntimeSettings runtime;  // how a rank joins the run
  model::ModelSettings model;         // made for the CPU; settings_on() adapts it to a device
  train::TrainerSettings trainer;     // steps, evaluations, save points
  observe::ReportSettings reports;    // lines and files
  SampleSettings samples;             // texts of the model on its way
  OutputSettings output;
  bool learns_limits = false;  // calc_ft_timeouts: time limits of ranks are learned and kept in the output folder
  std::optional<std::string> resume;  // resume_from_checkpoint; std::nullopt: start from scratch
  PretrainSettings pretrain;
  RunSwitches switches;
  // Input of the memory planner, still without model, sequence length and machinery (closed_shape() adds them).
  // `plannable` is false if options do not tell everything: a continued adapter has the rank and targets of its files.
  plan::RunShape shape;
  bool plannable = true;
};

// Returns the settings for a model on `device`.
model::ModelSettings settings_on(model::ModelSettings settings, at::Device device);

// `args` must be valid and derived. Throws ConfigError for what validate() cannot see, such as the name of a group of
// ranks that does not exist.
RunSettings run_settings(const config::TrainingArguments& args, const RunWorld& world);

// Parts of the above, for programs that need only these.
LoadSettings load_settings(const config::TrainingArguments& args);
OutputSettings output_settings(const config::SaveConfig& save);
// Returns the folder of non-persistent checkpoints of the run in `run`; empty without them, or without a run folder.
std::filesystem::path rolling_folder(const config::CheckpointConfig& checkpoint, const std::optional<std::string>& run);
// Returns the tokens per sequence: seq_length, or cutoff_len without it. `args` need not be derived.
int64_t planned_length(const config::TrainingArguments& args);

}  // namespace megalith::run
