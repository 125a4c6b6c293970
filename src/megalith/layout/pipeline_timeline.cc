// A list simulation: each rank runs its actions in order; an action begins when the rank is free and the same
// micro-batch has finished on the neighboring stage, plus the transfer. Ranks take turns until none has work left; a
// round without progress is a deadlock of the schedule.
#include "megalith/layout/pipeline_timeline.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>

#include "megalith/base/error.h"

namespace megalith::layout {

namespace {

using Kind = PipelineAction::Kind;

// Runs the schedules of all ranks against each other.
class Simulation {
 public:
  Simulation(const PipelineShape& shape, const PipelineCosts& costs) : shape_(shape), costs_(costs) {
    for (int rank = 0; rank < shape.pp; ++rank) {
      std::vector<PipelineAction> compute;
      for (const PipelineAction& a : pipeline_schedule(shape, rank).actions)
        if (a.is_compute()) compute.push_back(a);
      lists_.push_back(std::move(compute));
    }
    timeline_.ranks.resize(lists_.size());
    free_.resize(lists_.size(), 0);
  }

  PipelineTimeline run() {
    // Each round runs every rank as far as it can get; the number of rounds is at most the number of actions.
    size_t left = 0;
    for (const auto& list : lists_) left += list.size();
    while (left > 0) {
      const size_t before = left;
      for (size_t rank = 0; rank < lists_.size(); ++rank) left -= advance(rank);
      check(left < before, "the ranks of this pipeline schedule wait for each other");
    }
    double work = 0;
    for (const auto& rank : timeline_.ranks)
      for (const auto& span : rank) {
        if (!span.action.with_next) work += span.end - span.begin;  // a pair counts once
        timeline_.length = std::max(timeline_.length, span.end);
      }
    timeline_.bubble_fraction = 1 - work / (timeline_.length * shape_.pp);
    return std::move(timeline_);
  }

 private:
  // Runs as many actions of the rank as possible; returns their number.
  size_t advance(size_t rank) {
    size_t count = 0;
    auto& done = timeline_.ranks[rank];
    while (done.size() < lists_[rank].size()) {
      // One action, or the two of a pair, which begin when both of their inputs are there.
      const auto first = lists_[rank].begin() + static_cast<std::ptrdiff_t>(done.size());
      const std::span<const PipelineAction> together(first, first->with_next ? 2 : 1);
      double begin = free_[rank], lasts = together.size() == 2 ? -costs_.saved_by_pair : 0;
      bool ready = true;
      for (const PipelineAction& a : together) {
        const auto arrives = ready_at(a, static_cast<int>(rank));
        ready = ready && arrives;
        begin = std::max(begin, arrives.value_or(0));
        lasts += cost(a);
      }
      if (!ready) break;
      for (const PipelineAction& a : together) {
        done.push_back({a, begin, begin + lasts});
        finished_[{a.kind, a.microbatch, stage(a, static_cast<int>(rank))}] = begin + lasts;
      }
      free_[rank] = begin + lasts;
      count += together.size();
    }
    return count;
  }

  // The position in the order in which data passes through the model.
  int stage(const PipelineAction& a, int rank) const { return a.chunk * shape_.pp + rank; }

  // Returns when the action's input from another stage arrives; std::nullopt if that is not known yet.
  std::optional<double> ready_at(const PipelineAction& a, int rank) const {
    const int own = stage(a, rank), last = shape_.chunks * shape_.pp - 1;
    const bool forward = a.kind == Kind::kForward;
    if (a.kind == Kind::kWeightGradient || own == (forward ? 0 : last)) return 0;
    const auto found = finished_.find({a.kind, a.microbatch, forward ? own - 1 : own + 1});
    if (found == finished_.end()) return std::nullopt;
    return found->second + (shape_.pp > 1 ? costs_.transfer : 0);
  }

  // Schedules other than zero-bubble compute both gradients in one backward.
  double cost(const PipelineAction& a) const {
    if (a.kind == Kind::kForward) return costs_.forward;
    if (a.kind == Kind::kWeightGradient) return costs_.weight_gradient;
    return shape_.kind == ScheduleKind::kZeroBubble ? costs_.backward : costs_.backward + costs_.weight_gradient;
  }

  // An action, told apart by its position in the model and not by its rank.
  struct Key {
    Kind kind;
    int microbatch, stage;
    auto operator<=>(const Key&) const = default;
  };

  const PipelineShape& shape_;
  const PipelineCosts& costs_;
  std::vector<std::vector<PipelineAction>> lists_;
  std::vector<double> free_;        // by rank: the time at which it can start its next action
  std::map<Key, double> finished_;  // end of every action that has run
  PipelineTimeline timeline_;
};

}  // namespace

PipelineTimeline pipeline_timeline(const PipelineShape& shape, const PipelineCosts& costs) {
  return Simulation(shape, costs).run();
}

}  // namespace megalith::layout
