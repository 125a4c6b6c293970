// RerunGuard: runs forward and backward of a step under a RerunMachine. Restores the random streams for a rerun, and
// ends the run when the machine demands it. Its ResultCheck decides which results are checked and what happens in
// disabled mode.
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

// Ends the run with an exit code, the same on all ranks. The message says what rank `rank` has found. It becomes the
// exit code of the process (run/exit_code.h), which launchers and schedulers act on.
class RerunExit : public Error {
 public:
  // The facts that the caller acts on.
  struct Facts {
    int exit_code = kExitResultRejected;
    bool save = false;  // first save the state before the step, with `state` in it
    int rank = 0;
    std::string state;  // argument for RerunGuard::resume
  };
  // `text` is for the user and names the rank that found the result.
  RerunExit(Facts facts, const std::string& text) : Error(text), facts_(std::move(facts)) {}
  const Facts& facts() const { return facts_; }

 private:
  Facts facts_;
};

// One thread per rank; the context outlives it. Throws ConfigError when the tracker's file cannot be written.
class RerunGuard {
 public:
  // `tracker` is result_rejected_tracker_filename; empty for none.
  RerunGuard(const RerunSettings& settings, const std::filesystem::path& tracker, parallel::ParallelContext& context);
  RerunGuard(const RerunGuard&) = delete;
  RerunGuard& operator=(const RerunGuard&) = delete;

  // Checks the gradients of this model from now on. The guard outlives the model.
  void watch(OptimizedModel& model) { check_.watch(model.chunks()); }
  // Continues from a checkpoint with this RerunExit::Facts::state, which is empty when nothing was wrong.
  void resume(const std::string& state, const std::string& origin);
  // Returns the steps that the tracker's file tells the run to skip.
  std::vector<int64_t> iterations_to_skip() const;

  // Runs `pass` (forward and backward of step `number`, with reduced gradients) until its result is accepted.
  // Collective. Throws RerunExit after resetting the random streams to their state before the step.
  void run(int64_t number, const std::function<void()>& pass);

  // Receives the results of each pass.
  ResultCheck& result_check() { return check_; }
  // Returns whether the current pass can be rejected only by results that ResultCheck::veto knows on the device, so
  // that an update that heeds the veto may be queued before the host has seen them. The same on all ranks.
  bool update_may_be_queued() const;
  // Whether the losses have to be checked before the veto: the device does not recognize a spike.
  bool checks_losses_first() const { return reruns_ && settings_.check_for_spiky_loss; }
  // Tells whether any rank vetoes the current pass, which saves asking all ranks again.
  void set_verdict(bool vetoed) { verdict_ = vetoed; }

 private:
  // any_rank() asks all ranks, unless the verdict is known; leave() throws RerunExit with the same text everywhere.
  // Both are collective.
  std::vector<bool> any_rank(const std::vector<bool>& mine);
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
  std::string random_streams_;   // their state before the step
  std::optional<bool> verdict_;  // on the current pass, once it is known
};

}  // namespace megalith::train
