// live.json: what the ranks did since the last line, and what the experts got; replaced as the run goes on.
//
//   {"time":1763230000.1,"step":120,
//    "ranks":[{"compute_seconds":0.41,"wait_seconds":0.02,"peak_bytes":1234},…],        by rank; means of a step
//    "experts":[{"layer":0,"load":[120,96,…]},…]}                                       tokens of the last step, by
//    expert
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "megalith/comm/group.h"
#include "megalith/observe/step_clock.h"
#include "megalith/train/callback.h"
#include "megalith/train/expert_loads.h"

namespace megalith::observe {

// Rank 0 writes `<folder>/live.json` at lines of training, but not more often than every two seconds, and at the end.
// Collective over `world` at each such line.
class LiveFileCallback : public train::TrainerCallback {
 public:
  struct Settings {
    std::filesystem::path folder;
    std::function<double()> waited_seconds{};  // World::waited_seconds
    std::function<int64_t()> peak_bytes{};     // of this rank's memory
    std::function<void()> note_experts{};      // train::ExpertLoads, with experts
    std::function<std::vector<train::ExpertLoad>()> take_experts{};
  };
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
  void write();

  comm::Group world_;
  Settings settings_;
  StepClock clock_;
  std::string text_;        // rank 0: what there is to write; empty when it is written
  int64_t written_ns_ = 0;  // when it last was
};

}  // namespace megalith::observe
