// What restarts have cost, in the lines of a run.
#pragma once

#include <optional>

#include "megalith/comm/store/restarts.h"
#include "megalith/train/report/callback.h"

namespace megalith::observe {

// Completes the trainer's lines of a job that was started again, for the callbacks after it; the first line after the
// restart and the totals at the end get
//   restarts         starts before this one
//   detect_seconds   from the failed rank's last sign of life until its failure was seen, mean of all failures
//   resume_seconds   from there until the first step was done again, of this restart
//   goodput          share of the job's time in steps whose results are in use
// Where no launcher of ours says so, it says the same (torchrun; detect_seconds then counts from the last step done).
class RestartCallback : public train::TrainerCallback {
 public:
  explicit RestartCallback(comm::RankLaunch launch) : launch_(std::move(launch)) {}
  void on_step_begin(train::TrainerEvent& event) override;
  void on_step_end(train::TrainerEvent& event) override;
  void on_log(train::TrainerEvent& event) override;

 private:
  const comm::RankLaunch launch_;
  int64_t step_began_ns_ = 0;
  comm::Attempt own_;
  std::optional<double> resume_seconds_;
  bool told_ = false;
};

}  // namespace megalith::observe
