// The groups over which a run of a layout communicates, and for what.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "megalith/layout/rank_grid.h"
#include "megalith/parallel/link_times.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::parallel {

// One group and its use.
struct GroupUse {
  std::optional<layout::GroupKind> kind;  // std::nullopt means the world
  std::string purpose;                    // "gradients"
  std::vector<TimedOp> operations;        // those that dominate its time
  bool large = true;                      // messages of megabytes rather than of a few numbers

  // Returns "tp", "dp_cp", …, or "world".
  std::string name() const;
  // Returns this rank's group of the kind; std::nullopt if it is in none (embedding groups, stages in the middle).
  std::optional<comm::Group> group(const ParallelContext& context) const;
};

// Returns the kinds of more than one rank that a run of this layout uses, in creation order, the world last: the same
// on all ranks, so that they can go through them together. Kinds for experts only if the layout splits experts
// differently from the rest: the grid does not know the model.
std::vector<GroupUse> groups_of_run(const layout::RankGrid& grid);

}  // namespace megalith::parallel
