// TrainerSettings: the complete description of a run for a Trainer, with every default resolved.
//
// run::trainer_settings makes it from options; a program may also fill it in itself. The objects that a run works with
// (data, objective, callbacks) are in TrainerSetup.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/enums.h"
#include "megalith/layout/microbatches.h"
#include "megalith/layout/pipeline_schedule.h"
#include "megalith/optim/distributed_data_parallel.h"
#include "megalith/optim/grad_scaler.h"
#include "megalith/optim/optimizer_settings.h"
#include "megalith/optim/overlap/overlapped_update.h"
#include "megalith/optim/schedule/run_schedule.h"
#include "megalith/train/settings/rerun_settings.h"

namespace megalith::train {

// The length of a run: the first of max_steps, train_samples and num_train_epochs that is above 0 decides.
struct LengthSettings {
  int64_t max_steps = 0;                    // optimizer steps
  int64_t train_samples = 0;                // as many steps as consume this many samples
  double num_train_epochs = 3.0;            // passes over the data
  std::vector<int64_t> iterations_to_skip;  // counted from 1; their data is consumed but not trained on
  int64_t exit_interval = 0;                // > 0: the run ends at the first multiple
  int early_stopping_steps = 0;             // > 0: ends after this many evaluations in a row without improvement
};

// How a step runs its micro-batches. Equal on all ranks of a run.
struct StepSettings {
  layout::PipelineShape pipeline{.kind = layout::ScheduleKind::kNone};  // number of micro-batches: see shape()
  bool overlap_p2p_comm = false;  // interleaved schedules receive one action ahead
  int deferred_heads =
      0;  // micro-batches of a step whose head leaves its weight gradient for the pipeline's flush, at most
  bool per_token_loss = false;          // divide gradients by all labels of the step, not per micro-batch
  bool graphs = false;                  // record and replay micro-batches if possible (graphed_microbatches.h)
  int graph_warmup_steps = 3;           // steps without graphs before the first recording
  bool router_losses_by_layer = false;  // also report the losses of each layer's router (routing_step.h)

  // Returns the schedule of a step or, with forward_only, of an evaluation with this many micro-batches.
  layout::PipelineShape shape(int microbatches, bool forward_only = false) const;
};

// Whether later layers are updated beside the next forward pass (step/overlap_update.h).
struct OverlapUpdateSettings {
  bool enabled = false;  // without effect where a run cannot do it
  optim::OverlapSettings overlap{};
  optim::MakeSideQueue make_queue = optim::make_side_queue;
};

// How gradients become new parameters, except for the schedule. The scaler is a value: each run starts with a copy of
// it.
struct UpdateSettings {
  optim::OptimizerSettings optimizer;
  optim::DdpSettings gradients;  // for the chunk that is cut into buckets (optim::settings_of_chunk)
  optim::GradScaler scaler = optim::GradScaler::constant(1);  // its state at the start of a run
  optim::ParamGather param_gather = optim::ParamGather::kInStep;
  OverlapUpdateSettings overlap{};
};

// When a run logs a line, and what the line contains. Intervals below 1 are resolved once the length of the run is
// known (resolve_intervals).
struct LogSettings {
  config::Interval strategy = config::Interval::kSteps;
  double steps = 500;                                        // between lines; below 1: a fraction of the whole run
  bool first_step = false;                                   // always log the first step
  bool nan_inf_filter = true;                                // replace a loss that is not finite by the mean so far
  bool effective_tokens = false;                             // labeled tokens per second
  bool params_norm = false;                                  // norm of all parameters
  bool loss_scale = false;                                   // the loss scale
  bool consumed_samples = false;                             // consumed_samples, skipped_samples and global_batch_size
  config::TokensSeen tokens_seen = config::TokensSeen::kNo;  // num_input_tokens_seen, with or without padding
};

// The metric that decides which evaluation is the best.
struct BestMetric {
  std::string name = "eval_loss";
  bool greater = false;  // larger values are better
  // Whether `value` is better than `than`; never true for NaN.
  bool better(double value, double than) const { return greater ? value > than : value < than; }
};

// When a run evaluates, and what follows from the result. `strategy` decides whether `delay` counts steps or epochs.
struct EvalPlan {
  config::Interval strategy = config::Interval::kNo;
  double steps = 0;                // between evaluations; below 1: a fraction of the whole run; 0: never
  double delay = 0;                // steps or epochs before the first one
  bool on_start = false;           // also evaluate before the first step
  int64_t micro_batch_size = 1;    // samples per forward pass
  BestMetric best_metric;          // used for early stopping and tracks_best
  bool tracks_best = false;        // remember the best evaluation and its save point
  bool loads_best_at_end = false;  // finally load the best save point into the model
};

// Save points on the machines' own disks (LocalSaves).
struct LocalSaveSettings {
  std::filesystem::path folder;  // on each machine; empty if the run has none
  bool loads = false;            // the run continues from them if they are not older than its save points
  int copies = 1;                // ranks that hold each part, its own rank included
  int jump = 1;                  // distance between the ranks that hold copies of one another's parts
};

// Save points between those of the run that only serve to continue after a failure: the newest alone is kept. A step at
// which the run saves anyway has none.
struct RollingSaves {
  std::filesystem::path folder;  // its own, outside of the run's save points; empty if they are local
  int64_t interval = 0;          // steps between them; 0: none
  LocalSaveSettings local{};
};

// When a run saves, and what. Save points are written by RunSaver.
struct SaveSettings {
  std::filesystem::path output_dir;  // folder of all files; if empty, the run writes none
  config::Interval strategy = config::Interval::kSteps;
  double steps = 500;                      // between save points; below 1: a fraction of the whole run; 0: never
  std::optional<int> total_limit;          // save points to keep (checkpoint::Retention); std::nullopt keeps all
  std::optional<int64_t> retain_interval;  // multiples of it are never removed
  bool optimizer = true;                   // save the optimizer's state
  bool rng = true;                         // save the random states
  bool file_per_writer = false;            // each rank with optimizer state writes its own file
  bool in_background = false;              // continue training while a save point is written
  bool merged_model = false;               // export an adapter merged into the model
  bool converted_adapter = false;          // export one that starts from principal parts as one for the base model
  bool sharded_optimizer = false;          // recorded in the save point: optimizer state is split over ranks
  RollingSaves rolling;                    // in addition to the run's own save points
  std::string arguments;                   // every effective option as YAML: the text of args.yaml

  // Whether the run writes save points on its way.
  bool saves_points() const { return !output_dir.empty() && strategy != config::Interval::kNo; }
};

// The reaction to tensors that a run and a save point do not both have. Shapes must agree in any case.
enum class KeyAction { kIgnore, kWarn, kFail };
struct KeyActions {
  KeyAction absent = KeyAction::kFail;    // the save point lacks a tensor; without kFail it keeps its initial values
  KeyAction unread = KeyAction::kIgnore;  // the run has no use for a tensor of the save point
};

// The parts of a save point, besides the weights, that a run restores when it continues from it.
struct ResumeSettings {
  bool optimizer = true;         // including the schedule and the loss scale
  bool main_params = false;      // without the rest of the optimizer: its main parameters
  bool rng = true;               // random streams; reseeded if the layout differs from the one that saved
  bool restarts_epoch = false;   // start the epoch again instead of continuing in the middle of it
  bool data_may_change = false;  // data that differs from the save point's causes a warning, not an error
  KeyActions keys;               // for weights and optimizer state, each as far as it is restored
};

// All settings of a run. Plain data: equal on all ranks, and never changed by the trainer.
struct TrainerSettings {
  LengthSettings length;
  layout::BatchPlan batch;  // its data_parallel_size is that of the grid
  StepSettings step;
  UpdateSettings update;
  optim::MakeSchedule schedule;  // makes the schedule once the length in steps is known
  LogSettings log;
  EvalPlan eval;
  SaveSettings save;
  ResumeSettings resume;
  RerunSettings rerun;
  int64_t check_weight_hash_interval = 0;                // > 0: compare replicas every so many steps
  int64_t histogram_interval = 0;                        // > 0: count weights and gradients every so many steps
  std::optional<std::chrono::seconds> collective_limit;  // timeout of collectives after the first step
  bool trains_adapter = false;                           // the model has an adapter, and only that is trained
  uint64_t seed = 42;                                    // for parameters that are not in files
};

}  // namespace megalith::train
