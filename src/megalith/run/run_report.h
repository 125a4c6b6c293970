// Reports of a run: a summary at the start, callbacks that show its progress, a summary at the end.
//
//   for (auto& callback : run::watch_run(models, settings, data, trace, launch))
//     setup.callbacks.push_back(std::move(callback));            // progress line, metrics.jsonl, TensorBoard, …
//   …  trainer.train() …
//   run::print_end(context, settings.reports, trainer.state(), output);
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/comm/store/restarts.h"
#include "megalith/comm/world.h"
#include "megalith/model/virtual_models.h"
#include "megalith/run/resolve/run_settings.h"
#include "megalith/train/report/callback.h"
#include "megalith/train/trainer.h"

namespace megalith::run {

// The data in the summary at the start.
struct DataSummary {
  std::vector<std::pair<std::string, std::string>> parts;  // "train", "1,024 samples"
  int64_t sequence_length = 0;                             // tokens of the longest sequence
  int64_t left_out = 0;                                    // samples that the training data lacks
};

// Records the operations of all groups in `trace` while it lives. On a GPU, has `trace` measure by the GPU's clock.
class WorldTrace {
 public:
  // Both must outlive it.
  WorldTrace(comm::World& world, TraceRecorder& trace);
  ~WorldTrace() { world_.set_trace(nullptr); }
  WorldTrace(const WorldTrace&) = delete;
  WorldTrace& operator=(const WorldTrace&) = delete;

 private:
  comm::World& world_;
};

// Prints on stderr what the run will do, and returns the callbacks that show its progress. `launch` tells how this rank
// was started; comm::launch_from_env() serves for ranks that Megalith's launcher did not start. `trace` outlives the
// callbacks. Collective over all ranks.
std::vector<std::unique_ptr<train::TrainerCallback>> watch_run(const model::VirtualModels& models,
                                                               const RunSettings& run, const DataSummary& data,
                                                               TraceRecorder& trace, const comm::RankLaunch& launch);

// Prints on stderr how training ended. Collective over all ranks.
void print_end(const parallel::ParallelContext& context, const observe::ReportSettings& reports,
               const train::TrainerState& state, const train::TrainOutput& output);

}  // namespace megalith::run
