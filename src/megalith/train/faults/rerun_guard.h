// RerunGuard: the RerunMachine around forward and backward of a step. Keeps the random streams, and ends the run as the
// machine demands. What is looked at, and what follows in disabled mode, is the business of its ResultCheck.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megalith/parallel/parallel_context.h"
#include "megalith/train/faults/rerun_machine.h"
#include "megalith/train/faults/result_check.h"
#include "megalith/train/step/optimized_model.h"

namespace megalith::train {

// The run ends with this exit code; the same on all ranks. The message tells what the rank `rank` has found.
class RerunExit : public Error {
 public:
  struct Facts {
    int exit_code = kExitResultRejected;
    bool save = false;  // first a checkpoint of the state before the step, with `state` in it
    int rank = 0;
    std::string state;  // for RerunGuard::resume
  };
  RerunExit(Facts facts, const std::string& text) : Error(text), facts_(std::move(facts)) {}
  const Facts& facts() const { return facts_; }

 private:
  Facts facts_;
};

// One thread a rank; the context outlives it. Throws ConfigError when the tracker's file cannot be written.
class RerunGuard {
 public:
  // `tracker`: result_rejected_tracker_filename; empty: none.
  RerunGuard(const RerunSettings& settings, const std::filesystem::path& tracker, parallel::ParallelContext& context);
  RerunGuard(const RerunGuard&) = delete;
  RerunGuard& operator=(const RerunGuard&) = delete;

  // Looks at the gradients of this model from now on. The guard outlives it.
  void watch(OptimizedModel& model) { check_.watch(model.chunks()); }
  // The run goes on from a checkpoint with this RerunExit::Facts::state; empty: nothing was wrong.
  void resume(const std::string& state, const std::string& origin);
  // Steps that the tracker's file says to leave out.
  std::vector<int64_t> iterations_to_skip() const;

  // Runs `pass` (forward and backward of step `number`, gradients reduced) until its result stands. Collective. Throws
  // RerunExit, with the random streams as they were before the step.
  void run(int64_t number, const std::function<void()>& pass);

  // Told about the results of each pass.
  ResultCheck& result_check() { return check_; }
  // In the running pass, after its losses: it can be rejected for gradients that are not finite, and for nothing else.
  // An update that takes place only when they are may be started before they have been looked at.
  bool only_non_finite_gradients_matter() const;

 private:
  std::vector<bool> any_rank(const std::vector<bool>& mine) const;
  [[noreturn]] void leave();
  void report_statistics(int64_t number);

  parallel::ParallelContext& context_;
  const RerunSettings settings_;
  const bool reruns_;
  const ResultPlace place_;
  const std::filesystem::path tracker_file_;
  std::optional<RejectionTracker> tracker_;
  RerunMachine machine_;
  ResultCheck check_;
  std::string random_streams_;  // before the step
};

}  // namespace megalith::train
