// All that shows a run, in the order in which it is called.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/comm/group.h"
#include "megalith/comm/store/restarts.h"
#include "megalith/observe/progress.h"
#include "megalith/observe/report_settings.h"
#include "megalith/observe/trace_callback.h"
#include "megalith/train/report/callback.h"
#include "megalith/train/step/expert_loads.h"

namespace megalith::observe {

struct ObserverSetup {
  comm::Group world;
  at::Device device = at::kCPU;                   // where the world's collectives take tensors
  TraceRecorder* trace = nullptr;                 // this rank's; outlives the callbacks. None: no timers, no timeline
  ProgressSettings progress;                      //
  double flops_per_token = 0;                     // forward and backward; 0: no TFLOP/s, no memory in the lines
  std::function<int64_t()> peak_bytes{};          // of this rank's memory
  std::function<int64_t()> reserved_bytes{};      // what its device's allocator holds; empty: it has none
  bool timing = false;                            // say what phases take
  std::optional<TraceSteps> steps{};              // of the timeline (--trace); empty: those of the settings, if any
  std::string rank_label{};                       // of this rank in it
  std::optional<comm::RankLaunch> launch{};       // how the ranks were started: restarts are part of the lines
  std::function<double()> waited_seconds{};       // World::waited_seconds; for log_straggler and live.json
  std::shared_ptr<train::ExpertLoads> experts{};  // of a model with experts; for live.json
};

// In output_dir (without one, none of these): metrics.jsonl, events.jsonl, live.json, args.yaml, trainer_state.json,
// trace.json, loss.svg; in tensorboard_dir TensorBoard's files; on stderr progress and timers. All ranks of the world
// call it alike.
std::vector<std::unique_ptr<train::TrainerCallback>> make_observers(const ReportSettings& settings,
                                                                    const ObserverSetup& setup);

// Writes `args.yaml` (every effective option; `megalith train args.yaml` does the same run) when training starts, and
// `trainer_state.json` when it ends; on world process zero.
class RunFilesCallback : public train::TrainerCallback {
 public:
  RunFilesCallback(std::filesystem::path folder, std::string arguments)
      : folder_(std::move(folder)), arguments_(std::move(arguments)) {}
  void on_train_begin(train::TrainerEvent& event) override;
  void on_train_end(train::TrainerEvent& event) override;

 private:
  std::filesystem::path folder_;
  std::string arguments_;
};

}  // namespace megalith::observe
