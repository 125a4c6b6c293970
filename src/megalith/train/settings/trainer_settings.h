// TrainerSettings: everything that a Trainer is told about its run, with every default resolved.
//
// run::trainer_settings makes it from options; a program may fill it in by itself. What a run works with (data,
// objective, callbacks) is in TrainerSetup.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/choices.h"
#include "megalith/layout/microbatches.h"
#include "megalith/layout/pipeline_schedule.h"
#include "megalith/optim/distributed_data_parallel.h"
#include "megalith/optim/grad_scaler.h"
#include "megalith/optim/optimizer_settings.h"
#include "megalith/optim/run_schedule.h"
#include "megalith/train/settings/rerun_settings.h"

namespace megalith::train {

// How long a run is: the first of max_steps, train_samples and num_train_epochs that is above 0 decides.
struct LengthSettings {
  int64_t max_steps = 0;                    // optimizer steps
  int64_t train_samples = 0;                // the steps that so many samples make
  double num_train_epochs = 3.0;            // passes over the data
  std::vector<int64_t> iterations_to_skip;  // counted from 1: their data is consumed, and nothing is learnt from it
  int64_t exit_interval = 0;                // > 0: the run ends at the first multiple
  int early_stopping_steps = 0;             // > 0: it ends after so many evaluations in a row without a gain
};

// How a step runs its micro-batches.
struct StepSettings {
  layout::PipelineShape pipeline{.kind = layout::ScheduleKind::kNone};  // the micro-batches are those of the step
  bool overlap_p2p_comm = false;  // interleaved schedules receive one action ahead
  bool per_token_loss = false;    // gradients are divided by all labels of the step, not by those of a micro-batch
  bool graphs = false;            // record micro-batches and play them back, where a run can (graphed_microbatches.h)
  int graph_warmup_steps = 3;     // steps without, before the first recording

  // The schedule of a step, or of an evaluation, with so many micro-batches.
  layout::PipelineShape shape(int microbatches, bool forward_only = false) const;
};

// How gradients become new parameters, apart from the schedule.
struct UpdateSettings {
  optim::OptimizerSettings optimizer;
  optim::DdpSettings gradients;  // of the chunk that is cut into buckets (optim::settings_of_chunk)
  optim::GradScaler scaler = optim::GradScaler::constant(1);  // as it is at the start of a run
  bool overlap_param_gather = false;  // parameters are collected while the next step's forward runs
};

// Which lines a run logs, and what is in them.
struct LogSettings {
  config::Interval strategy = config::Interval::kSteps;
  double steps = 500;                                        // between lines; below 1: that part of the whole run
  bool first_step = false;                                   // the first step has a line in any case
  bool nan_inf_filter = true;                                // a loss that is not finite is replaced by the mean so far
  bool effective_tokens = false;                             // tokens per second without padding
  bool params_norm = false;                                  // norm of all parameters
  bool loss_scale = false;                                   // the scale of the loss
  bool consumed_samples = false;                             // consumed_samples, skipped_samples and global_batch_size
  config::TokensSeen tokens_seen = config::TokensSeen::kNo;  // num_input_tokens_seen, with or without padding
};

// The metric that decides which evaluation is the best.
struct BestMetric {
  std::string name = "eval_loss";
  bool greater = false;  // is better
  bool better(double value, double than) const { return greater ? value > than : value < than; }
};

// When a run evaluates, and what follows from it.
struct EvalPlan {
  config::Interval strategy = config::Interval::kNo;
  double steps = 0;                // between evaluations; below 1: that part of the whole run; 0: never
  double delay = 0;                // steps or epochs before the first one
  bool on_start = false;           // one before the first step
  int64_t micro_batch_size = 1;    // samples that a forward pass takes
  BestMetric best_metric;          // for early stopping, and
  bool tracks_best = false;        // to remember the best evaluation and its save point
  bool loads_best_at_end = false;  // the model is then that of the best save point
};

// When a run saves, and what. The arguments are the text of args.yaml.
struct SaveSettings {
  std::filesystem::path output_dir;  // empty: the run writes nothing
  config::Interval strategy = config::Interval::kSteps;
  double steps = 500;                      // between save points; below 1: that part of the whole run; 0: never
  std::optional<int> total_limit;          // save points that are kept, besides the best; empty: all
  std::optional<int64_t> retain_interval;  // multiples of it are kept for good
  bool optimizer = true;                   // its state is part of a save point
  bool rng = true;                         // so are the random states
  bool file_per_writer = false;            // each rank that has state of the optimizer writes a file of its own
  bool in_background = false;              // training goes on while a save point is written
  bool merged_model = false;               // an adapter is exported as part of the model
  bool sharded_optimizer = false;          // the layout that a save point names: optimizer state is split over ranks
  std::string arguments;                   // every effective option, as YAML

  bool saves_points() const { return !output_dir.empty() && strategy != config::Interval::kNo; }
};

// What a run takes of the save point that it continues, besides the weights.
struct ResumeSettings {
  bool optimizer = true;         // with the schedule and the loss scale
  bool rng = true;               // with another layout than the one that saved, streams are seeded anew
  bool restarts_epoch = false;   // begins the epoch again instead of going on in the middle of it
  bool data_may_change = false;  // data that is not that of the save point brings a warning and not an error
};

struct TrainerSettings {
  LengthSettings length;
  layout::BatchPlan batch;  // its data_parallel_size is that of the grid
  StepSettings step;
  UpdateSettings update;
  optim::MakeSchedule schedule;  // of a run whose length in steps is known
  LogSettings log;
  EvalPlan eval;
  SaveSettings save;
  ResumeSettings resume;
  RerunSettings rerun;
  int64_t check_weight_hash_interval = 0;                // > 0: replicas are compared every so many steps
  std::optional<std::chrono::seconds> collective_limit;  // of collectives, once the first step is through
  bool trains_adapter = false;                           // the model has an adapter, and nothing else is trained
  uint64_t seed = 42;                                    // of parameters that files do not hold
};

}  // namespace megalith::train
