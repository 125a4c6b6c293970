// Adds the cost of restarts to the lines of a run.
#pragma once

#include <optional>

#include "megalith/comm/store/restarts.h"
#include "megalith/train/report/callback.h"

namespace megalith::observe {

// Adds to the first line after a restart, and to the totals at the end, for the callbacks after it:
//   restarts         number of earlier starts
//   detect_seconds   from the failed rank's last sign of life until its failure was detected; mean of all failures
//   resume_seconds   from there until the first step of this start was done
//   goodput          share of the job's time spent in steps whose results are in use
// If the job was not started by our launcher, which prints the same (torchrun, for example), it also logs them;
// detect_seconds then counts from the last completed step.
// After each step it passes the progress of this start to RankLaunch::on_step, for the starts that may follow.
class RestartCallback : public train::TrainerCallback {
 public:
  // `launch` says how often and when the job was started before; without restarts the callback only notes steps.
  explicit RestartCallback(comm::RankLaunch launch) : launch_(std::move(launch)) {}
  void on_step_begin(train::TrainerEvent& event) override;
  void on_step_end(train::TrainerEvent& event) override;
  void on_log(train::TrainerEvent& event) override;

 private:
  const comm::RankLaunch launch_;
  int64_t step_began_ns_ = 0;
  comm::Attempt own_;  // steps of this start, passed to the launcher after each
  std::optional<double> resume_seconds_;
  bool told_ = false;  // the first line after the restart has been written
};

}  // namespace megalith::observe
