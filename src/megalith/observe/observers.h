// Assembles everything that reports on a run, in the order in which it is called.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/comm/group.h"
#include "megalith/comm/store/restarts.h"
#include "megalith/observe/energy/gpu_monitor.h"
#include "megalith/observe/progress.h"
#include "megalith/observe/report_settings.h"
#include "megalith/observe/trace_callback.h"
#include "megalith/train/report/callback.h"
#include "megalith/train/step/expert_loads.h"

namespace megalith::observe {

// The objects that observers need besides ReportSettings. Functions may be empty, pointers null: the report then lacks
// the numbers that they would give. Every rank must set the same ones, because several observers exchange their numbers
// over `world`.
struct ObserverSetup {
  comm::Group world;
  at::Device device = at::kCPU;                   // device of the tensors that the world's collectives take
  TraceRecorder* trace = nullptr;                 // outlives the callbacks; nullptr for no timers, timeline and profile
  ProgressSettings progress;                      // its style and contents are taken from ReportSettings
  double flops_per_token = 0;                     // forward and backward; with 0, lines have no TFLOP/s and no memory
  std::optional<double> fp8_share{};              // share of these FLOPs in fp8; nullopt without fp8
  int64_t left_out_samples = 0;                   // that the training data lacks; with 0, lines do not mention them
  std::function<int64_t()> peak_bytes{};          // peak memory of this rank in bytes
  std::function<int64_t()> reserved_bytes{};      // bytes held by its device's allocator; empty if it has none
  std::function<double()> joules{};               // used by its GPU so far; for log_energy
  std::function<GpuReading()> gpu{};              // state of its GPU, for live.json; may be empty on some ranks
  bool timing = false;                            // report the time of phases
  std::optional<TraceSteps> steps{};              // steps of the timeline (--trace); std::nullopt for none
  std::string rank_label{};                       // name of this rank in the timeline
  std::optional<comm::RankLaunch> launch{};       // how the ranks were started, so that lines can report restarts
  std::function<double()> waited_seconds{};       // World::waited_seconds; for log_straggler and live.json
  std::shared_ptr<train::ExpertLoads> experts{};  // tokens per expert, for live.json; null without experts
};

// Creates the callbacks. They write into output_dir (if there is one) metrics.jsonl, events.jsonl, live.json,
// args.yaml, trainer_state.json, loss.svg and, if they are asked for, trace.json, profile/, samples.jsonl and
// histograms.jsonl; into tensorboard_dir TensorBoard's files; and to stderr progress and timers. All ranks of the world
// must call it with the same settings. The result goes into TrainerSetup::callbacks in this order: callbacks that add
// numbers to lines come before those that write them. A run without output_dir has only the callbacks that print.
std::vector<std::unique_ptr<train::TrainerCallback>> make_observers(const ReportSettings& settings,
                                                                    const ObserverSetup& setup);

// On world process zero, writes `args.yaml` (every effective option; `megalith train args.yaml` repeats the run) when
// training starts, and `trainer_state.json` when it ends. Both files are replaced as a whole. args.yaml is written
// before the first step, so that a run that fails early can still be repeated.
class RunFilesCallback : public train::TrainerCallback {
 public:
  // `folder` is created if needed; `arguments` is the YAML text of args.yaml.
  RunFilesCallback(std::filesystem::path folder, std::string arguments)
      : folder_(std::move(folder)), arguments_(std::move(arguments)) {}
  void on_train_begin(train::TrainerEvent& event) override;
  void on_train_end(train::TrainerEvent& event) override;

 private:
  std::filesystem::path folder_;
  std::string arguments_;
};

}  // namespace megalith::observe
