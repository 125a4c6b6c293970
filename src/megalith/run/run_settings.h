// RunSettings: what options decide about a run, with every default resolved. No file has been looked at; RunPlan
// (run_plan.h) adds what was found.
//
// run::run_settings makes it from options (resolve/run_settings.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "megalith/data/collator.h"
#include "megalith/data/sampler.h"
#include "megalith/model/model_settings.h"
#include "megalith/observe/report_settings.h"
#include "megalith/parallel/runtime_settings.h"
#include "megalith/plan/run_shape.h"
#include "megalith/train/settings/trainer_settings.h"

namespace megalith::run {

// The ranks of a run.
struct RunWorld {
  int size = 1;
  bool one_machine = true;
};

// Where a run writes, and what may be there already.
struct OutputSettings {
  std::filesystem::path folder;  // output_dir; empty: nowhere
  bool overwrites = false;       // a fresh run may begin among the files of another
  bool continues = false;        // the run is to continue one, so that its files are expected
};

// Which checkpoint `pretrain` begins with. Absent folders: none is asked for.
struct LoadSettings {
  std::optional<std::filesystem::path> folder;      // load: of a run or of a checkpoint
  std::optional<std::filesystem::path> pretrained;  // pretrained_checkpoint, where `folder` holds none
  std::optional<int64_t> step;                      // ckpt_step: this one of `folder`; absent: the newest
  std::optional<int64_t> counts_from;               // override_ckpt_iteration: the iteration that it counts as
  bool weights_only = false;                        // finetune: the run begins at iteration 0
  bool must_exist = false;                          // exit_on_missing_checkpoint
};

// What pretrain() is told beyond the trainer's settings.
struct PretrainSettings {
  LoadSettings load;
  int num_layers = 0;                   // of the whole model, which stages are cut from; 0: not given
  int mtp_layers = 0;                   // of multi-token prediction
  bool skip_train = false;              // evaluate only
  int64_t eval_iters = 0;               // global batches of an evaluation
  int64_t eval_global_batch_size = 0;   // of an evaluation; 0: that of the last training step
  std::optional<int64_t> exit_minutes;  // exit_duration_in_mins; absent: no limit
  int64_t seq_length = 0;               // tokens of a sample; 0: not given
  data::SamplerOptions order;           // its size is that of the training data
  data::CollatorOptions rows;           // of seq_length tokens
  int64_t padded_vocab_size = 0;        // rows of the embedding; 0: as vocab_multiple and tp ask for
};

// Flags of a run that are no options: they do not change its result.
struct RunSwitches {
  bool force = false;                        // start although the planned memory is more than there is
  bool timing = false;                       // say what the phases of a step take
  std::optional<observe::TraceSteps> trace;  // steps of a timeline; absent: none is written
  std::filesystem::path rejection_tracker;   // file that remembers rejected results over restarts; empty: none
};

struct RunSettings {
  bool trains = true;                 // else it evaluates only
  bool evaluates = false;             // on its evaluation data, at least at the end
  int64_t sequence_length = 0;        // tokens of the longest sequence, as far as options say
  parallel::RuntimeSettings runtime;  // how a rank joins
  model::ModelSettings model;         // for the CPU; settings_on() fits them to a device
  train::TrainerSettings trainer;     // steps, evaluations, save points
  observe::ReportSettings reports;    // lines and files
  OutputSettings output;
  std::optional<std::string> resume;  // resume_from_checkpoint; absent: the run starts afresh
  PretrainSettings pretrain;
  RunSwitches switches;
  // For the planner, which gets the model, the machinery and complete() when it is asked. Not for a run that continues
  // an adapter, whose rank and targets are those of its files.
  plan::RunShape shape;
  bool plannable = true;
};

// The settings for a model on `device`.
model::ModelSettings settings_on(model::ModelSettings settings, at::Device device);

}  // namespace megalith::run
