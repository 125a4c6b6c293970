// Which groups a run of a layout talks over, and how.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "megalith/layout/rank_grid.h"
#include "megalith/parallel/link_times.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::parallel {

struct GroupUse {
  std::optional<layout::GroupKind> kind;  // nullopt: the world
  std::string purpose;                    // "gradients"
  std::vector<TimedOp> operations;        // that its time goes into
  bool large = true;                      // messages of megabytes; false: a few numbers

  std::string name() const;
  // This rank's group of the kind; nullopt where it is in none (embeddings, stages in the middle).
  std::optional<comm::Group> group(const ParallelContext& context) const;
};

// The kinds of more than one rank that a run of this layout uses, in creation order, the world last: the same on all
// ranks, so that they can go through them together. Those of experts only when the layout splits experts otherwise than
// the rest: the grid does not know the model.
std::vector<GroupUse> groups_of_run(const layout::RankGrid& grid);

}  // namespace megalith::parallel
