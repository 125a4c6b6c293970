// A run on one rank, from a model and its data to the exported model: what `train` and `pretrain` share.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megalith/config/parser.h"
#include "megalith/model/virtual_models.h"
#include "megalith/run/launch_flags.h"
#include "megalith/train/trainer.h"

namespace megalith::run {

// Flags of a run that are no options of the table: they do not change its result.
struct RunFlags {
  bool dry_run = false, help = false, timing = false, force = false;
  std::optional<std::string> topic, trace, result_rejected_tracker_filename;
  // Declares itself to the parser, so it must not move while that runs.
  std::vector<config::CommandOption> options();
};

// output_dir can be written, and, for whoever begins the run, holds nothing that a fresh run would mix with. Throws
// ConfigError. Makes the folder.
void check_output_folder(const config::SaveConfig& save, bool begins_run);

// The steps of a run have a schedule: batch size and pipeline, and, where their number is given, learning rate and
// weight decay. Throws ConfigError.
void check_schedule(const config::TrainingArguments& args, int world_size);

// log_level; passive leaves what the environment says.
void apply_log_level(const config::LoggingConfig& logging);

// What is said of the data.
struct DataSummary {
  std::vector<std::pair<std::string, std::string>> parts;  // "train", "1,024 samples"
  int64_t sequence_length = 0;                             // longest
};

// Arguments of a rank of a job that was started again: the run goes on from the newest checkpoint in output_dir, if
// there is one.
config::TrainingArguments resumed_arguments(config::TrainingArguments args, const comm::RankLaunch& launch);

// A run on a connected rank: `launch` and `args` as they are now that all ranks agree which start of the job this is.
struct BegunRun {
  comm::RankLaunch launch;
  config::TrainingArguments args;
};
// Checks output_dir where that had to wait until here, then that all machines see the same folder; opens the rank's log
// in it. All ranks call it. Throws ConfigError.
BegunRun begin_run(const config::TrainingArguments& args, comm::RankLaunch launch, parallel::ParallelContext& context);

struct RunParts {
  comm::RankLaunch launch;
  train::TrainerSetup setup;  // data, objective, resume, assets; callbacks that come first
  DataSummary data;
};

// While it lives, the operations of all groups are part of the trace.
class WorldTrace {
 public:
  WorldTrace(comm::World& world, TraceRecorder& trace) : world_(world) { world.set_trace(&trace); }
  ~WorldTrace() { world_.set_trace(nullptr); }
  WorldTrace(const WorldTrace&) = delete;
  WorldTrace& operator=(const WorldTrace&) = delete;

 private:
  comm::World& world_;
};

// What shows a run: says what it will do, and makes the callbacks that tell how it goes. `trace` outlives them. All
// ranks call it.
std::vector<std::unique_ptr<train::TrainerCallback>> watch_run(const model::VirtualModels& models,
                                                               const config::TrainingArguments& args,
                                                               const RunFlags& flags, const DataSummary& data,
                                                               TraceRecorder& trace, const comm::RankLaunch& launch);
// Says what training has come to. All ranks call it.
void say_end(const parallel::ParallelContext& context, const config::TrainingArguments& args,
             const train::TrainerState& state, const train::TrainOutput& output);

// Trains and exports, evaluates when asked; says on stderr what it does. `args` after derive(). The run ends in order
// when setup.stop is raised (StopOnSignal). All ranks call it.
void run_training(model::VirtualModels& models, const config::TrainingArguments& args, const RunFlags& flags,
                  RunParts parts);

}  // namespace megalith::run
