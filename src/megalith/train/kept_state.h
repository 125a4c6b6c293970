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

#include "megalith/train/state_parts.h"

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
  // Returns what the other ranks are told: the step; a reason for keeping nothing; or "" from a process that has not
  // trained.
  std::string answer() const;
  // Everything but the tensors, for a rank that was lost.
  std::string header() const;
  void read_header(const std::string& text);
  void copy_to_lost(const comm::Group& replicas, int source, bool is_lost);

  bool kept_ = false;
  std::string why_not_;  // empty if something is kept, or if this process has not trained yet
  StateTexts texts_;     // the random streams are only compared
  std::vector<StatePart> parts_;
};

}  // namespace megalith::train
