// KeptState: what a rank keeps in memory when the failure of another rank ends its training, so that training continues
// at that step instead of the newest checkpoint. For ranks that are restarted in their processes (inprocess_restart).
//
// Survivors have their own state. A rank that was lost gets a copy from one of its data-parallel replicas, which hold
// the same parameters and, without the distributed optimizer, the same optimizer state. The state of a run allows this
// only if
//
//   * every lost rank has a replica that survived, and optimizer state and experts are not split over replicas;
//   * all survivors stopped between two updates, after the same step. A rank that was interrupted in an update, an
//     evaluation or a save keeps nothing;
//   * training draws no random numbers (no dropout): those of a lost rank are gone with it;
//   * there are no fp8 histories, which belong to a rank.
//
// Otherwise all ranks continue from the newest checkpoint, and rank 0 says why.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "megalith/train/report/trainer_state.h"
#include "megalith/train/run_checkpoint.h"
#include "megalith/train/run_progress.h"
#include "megalith/train/step/optimized_model.h"

namespace megalith::train {

// Belongs to the process of a rank, and outlives its trainers. Used by the rank's own thread.
class KeptState {
 public:
  // Keeps the state after step `state.global_step`, in host memory. Does not communicate. Never throws: what cannot be
  // kept is not.
  void keep(OptimizedModel& model, const SaveSettings& settings, const TrainerState& state, RunProgress progress);
  // Keeps nothing, for a reason that is told later.
  void keep_nothing(std::string why);

  // At the next start: gives lost ranks their copies and returns the point from which all ranks continue; std::nullopt
  // if memory does not hold the whole state. Collective; nothing is kept afterwards.
  std::optional<ResumePoint> take(parallel::ParallelContext& context);

 private:
  // A rectangle of a parameter or of the optimizer's state.
  struct Part {
    std::string name;
    std::vector<int64_t> global_shape, offset;
    at::Tensor values;  // on the host
  };
  class Source;

  static ResumePoint resume_point(KeptState kept);
  // Returns what the other ranks are told: the step; a reason for keeping nothing; or "" from a process that has not
  // trained.
  std::string answer() const;
  // Everything but the tensors, for a rank that was lost.
  std::string header() const;
  void read_header(const std::string& text);
  void copy_to_lost(const comm::Group& replicas, int source, bool is_lost);

  bool kept_ = false;
  std::string why_not_;  // empty if something is kept, or if this process has not trained yet
  int64_t step_ = 0;
  std::string state_, progress_;  // JSON
  std::string rng_;               // random streams; only compared
  std::vector<Part> parts_;
};

}  // namespace megalith::train
