// live.json: what the ranks have been doing since the previous version, and the load of the experts; replaced during
// the run.
//
//   {"time":1763230000.1,"step":120,
//    "ranks":[{"compute_seconds":0.41,"wait_seconds":0.02,"peak_bytes":1234,       by rank; means per step
//              "gpu":{"utilization":0.97,"memory_used":…,"memory_total":…,"temperature":61,"watts":640}},…],
//    "experts":[{"layer":0,"load":[120,96,…]},…]}                                  tokens per expert in the last step
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "megalith/comm/group.h"
#include "megalith/observe/energy/gpu_monitor.h"
#include "megalith/observe/step_clock.h"
#include "megalith/train/report/callback.h"
#include "megalith/train/step/expert_loads.h"

namespace megalith::observe {

// Rank 0 writes `<folder>/live.json` when training lines are logged, but at most every two seconds, and at the end.
// Collective over `world` only when it is written; the ranks agree on that by TrainerEvent::clock_seconds. The file is
// replaced as a whole, so a reader never sees a half-written one.
class LiveFileCallback : public train::TrainerCallback {
 public:
  // The target folder and the sources of the numbers. Empty functions leave their numbers out; they must be set, or
  // empty, on all ranks alike.
  struct Settings {
    std::filesystem::path folder;
    std::function<double()> waited_seconds{};  // World::waited_seconds
    std::function<int64_t()> peak_bytes{};     // peak memory of this rank in bytes
    std::function<GpuReading()> gpu{};         // state of this rank's GPU; unlike the others, it may differ by rank
    std::function<void()> note_experts{};      // train::ExpertLoads::note, if the model has experts
    std::function<std::vector<train::ExpertLoad>()> take_experts{};
  };
  // `world` is every rank of the run. The same functions must be set on all of them.
  LiveFileCallback(comm::Group world, Settings settings)
      : world_(std::move(world)), settings_(std::move(settings)), clock_(settings_.waited_seconds) {}
  void on_step_begin(train::TrainerEvent&) override { clock_.begin(); }
  void on_optimizer_step(train::TrainerEvent&) override {
    if (settings_.note_experts) settings_.note_experts();
  }
  void on_step_end(train::TrainerEvent&) override { clock_.end(); }
  void on_log(train::TrainerEvent& event) override;
  void on_train_end(train::TrainerEvent& event) override;

 private:
  // Gathers the numbers and replaces the file; does nothing when no step was done since the last time. Collective.
  void write(const train::TrainerEvent& event);

  comm::Group world_;
  Settings settings_;
  StepClock clock_;
  // Every rank keeps it, so that all decide alike whether the next line writes the file.
  std::optional<double> written_at_;  // clock_seconds of the last file; the same on all ranks
};

}  // namespace megalith::observe
