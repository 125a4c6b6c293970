// What a run says and writes: a summary at its start, callbacks that tell how it goes, a summary at its end.
//
//   for (auto& callback : run::watch_run(models, settings, data, trace, launch))
//     setup.callbacks.push_back(std::move(callback));            // progress line, metrics.jsonl, TensorBoard, …
//   …  trainer.train() …
//   run::say_end(context, settings.reports, trainer.state(), output);
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/comm/store/restarts.h"
#include "megalith/comm/world.h"
#include "megalith/model/virtual_models.h"
#include "megalith/run/run_settings.h"
#include "megalith/train/report/callback.h"
#include "megalith/train/trainer.h"

namespace megalith::run {

// What is said of the data.
struct DataSummary {
  std::vector<std::pair<std::string, std::string>> parts;  // "train", "1,024 samples"
  int64_t sequence_length = 0;                             // longest
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

// Says on stderr what the run will do, and makes the callbacks that tell how it goes. `launch`: how this rank was
// started; launch_from_env() for one without a launcher of ours. `trace` outlives the callbacks. All ranks call it.
std::vector<std::unique_ptr<train::TrainerCallback>> watch_run(const model::VirtualModels& models,
                                                               const RunSettings& run, const DataSummary& data,
                                                               TraceRecorder& trace, const comm::RankLaunch& launch);

// Says on stderr what training has come to. All ranks call it.
void say_end(const parallel::ParallelContext& context, const observe::ReportSettings& reports,
             const train::TrainerState& state, const train::TrainOutput& output);

}  // namespace megalith::run
