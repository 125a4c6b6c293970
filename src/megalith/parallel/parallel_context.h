// ParallelContext: this rank's place in every parallel dimension, its groups, its random streams and its device.
//
// The one object that distributed code takes. Nothing here is global: N contexts can live in one process, one per rank
// thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>

#include "megalith/comm/world.h"
#include "megalith/layout/rank_grid.h"
#include "megalith/parallel/rng_tracker.h"

namespace megalith::parallel {

// Used by the thread of one rank. `world` must outlive it.
class ParallelContext {
 public:
  // Requires grid.world_size() == world.size().
  ParallelContext(comm::World& world, layout::RankGrid grid, at::Device device = at::kCPU);

  // The layout, this rank's coordinates in it, and its connections. All are constant after construction.
  const layout::RankGrid& grid() const { return grid_; }
  const layout::RankPlace& place() const { return place_; }  // tp_rank, pp_rank, …, neighbors
  comm::World& world() const { return world_; }
  at::Device device() const { return device_; }
  int rank() const { return world_.rank(); }

  // Returns this rank's group of a kind, which connects when it is first used. Throws InternalError when the rank is in
  // none (embedding kinds): check in_group first.
  comm::Group group(layout::GroupKind kind) const;
  bool in_group(layout::GroupKind kind) const;

  // Groups that layers and the pipeline use most.
  comm::Group tp() const { return group(layout::GroupKind::kTp); }
  comm::Group pp() const { return group(layout::GroupKind::kPp); }
  // Returns the ranks of pp(), for the messages of one direction: hidden states, or their gradients. Each direction has
  // its own connection, so that neither waits for the other.
  comm::Group pipeline_messages(bool forward) const;
  comm::Group cp() const { return group(layout::GroupKind::kCp); }
  comm::Group ep() const { return group(layout::GroupKind::kEp); }
  comm::Group etp() const { return group(layout::GroupKind::kEtp); }
  comm::Group edp() const { return group(layout::GroupKind::kEdp); }
  // `with_cp` includes context-parallel ranks, as for the reduction of gradients and losses. `partial` restricts it to
  // this rank's optimizer instance, as for sharded optimizer state.
  comm::Group dp(bool with_cp = false, bool partial = false) const;

  // Return whether this rank holds the first or last pipeline stage. With virtual stages the chunk matters too: chunk 0
  // of the first rank, the last chunk of the last rank. Without a chunk, virtual stages are ignored.
  bool is_first_stage(std::optional<int> chunk = std::nullopt) const;
  bool is_last_stage(std::optional<int> chunk = std::nullopt) const;

  // The random streams of this rank. Used by the rank's own thread.
  RngTracker& rng() { return rng_; }
  const RngTracker& rng() const { return rng_; }

 private:
  comm::World& world_;
  const layout::RankGrid grid_;
  const layout::RankPlace place_;
  const at::Device device_;
  RngTracker rng_;
  mutable std::map<layout::GroupKind, comm::Group> groups_;  // those asked for so far
};

}  // namespace megalith::parallel
