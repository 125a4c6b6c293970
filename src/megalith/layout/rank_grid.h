// Maps ranks to process groups: pure arithmetic over a GridShape.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "megalith/layout/axis_grid.h"
#include "megalith/layout/grid_shape.h"
#include "megalith/layout/group_kind.h"

namespace megalith::layout {

// Selects, from the ranks of one pipeline in stage order, the members of a group: a subset, without repetition, the
// same on every rank. An empty result means that the pipeline has no such group.
using PipelineRanks = std::function<std::vector<int>(std::span<const int> pp_ranks)>;

// The choices of the reference.
std::vector<int> first_and_last_stage(std::span<const int> pp_ranks);  // one rank when pp is 1
std::vector<int> first_stage(std::span<const int> pp_ranks);

// The position of one rank. `*_rank` is its place in its group of that kind, `*_src_rank` the first global rank of that
// group; the pp_* neighbors are global ranks and wrap around.
struct RankPlace {
  int tp_rank, pp_rank, cp_rank, dp_rank, dp_cp_rank, tp_cp_rank;
  int ep_rank, etp_rank, tp_ep_rank, edp_rank;
  int tp_src_rank, mp_src_rank, dp_src_rank, dp_cp_src_rank, ep_src_rank;  // mp: the tp_pp group
  int pp_first_rank, pp_last_rank, pp_next_rank, pp_prev_rank;
  bool in_embedding_group, in_position_embedding_group;
  // Places within the optimizer instance; within the whole group if there is only one instance.
  int intra_dp_cp_rank, intra_edp_rank, intra_dist_opt_rank;
};

// All process groups of a parallel layout, computed on request.
//
// Invariants: a RankGrid exists only for a shape without problems. Every rank is in exactly one group of each kind,
// except the embedding kinds, whose groups hold only the ranks that their function chooses. Groups of a kind are
// numbered as in golden groups.json: by the axes that do not vary inside the group, the faster first.
//
// Nothing is stored per rank or per group, and the functions about one rank cost O(1), or O(group size) where they
// return the group: start-up does not grow with the number of groups. Constant after construction, so any thread may
// read it. A rank outside [0, world_size) or an index outside [0, group_count) is an InternalError.
class RankGrid {
 public:
  // Throws ConfigError with every problem of the shape.
  explicit RankGrid(GridShape shape, PipelineRanks embedding = first_and_last_stage,
                    PipelineRanks position_embedding = first_stage);

  // Sizes. dp and edp are the data-parallel sizes of dense layers and of experts; etp has its default filled in.
  const GridShape& shape() const { return shape_; }
  int world_size() const { return shape_.world_size; }
  int dp() const { return dense_.size(Axis::kDp); }
  int edp() const { return expert_.size(Axis::kDp); }
  int etp() const { return expert_.size(Axis::kTp); }
  const AxisGrid& dense() const { return dense_; }
  const AxisGrid& expert() const { return expert_; }

  // Returns the kinds that this layout has, in creation order: the partial kinds only with several optimizer instances,
  // hcp_i only as far as hierarchical_cp goes. The functions below also answer for the partial kinds of a single
  // instance (intra_* is then the whole group, inter_edp the rank alone).
  std::vector<GroupKind> kinds() const;

  // Returns the number of groups of the kind; for the embedding kinds, the number of pipelines.
  int group_count(GroupKind kind) const;
  // Returns one group by its index. Ranks are in the order of the golden file: ascending, except that intra_dist_opt
  // concatenates tp_ep_pp groups and the embedding kinds keep the order of their function.
  std::vector<int> group(GroupKind kind, int index) const;
  std::vector<std::vector<int>> groups(GroupKind kind) const;

  // Returns the index of the rank's group; for the embedding kinds that of its pipeline, whether or not it is a member.
  int group_index(GroupKind kind, int rank) const;
  // Returns the rank's group; empty if the rank is in none.
  std::vector<int> group_of(GroupKind kind, int rank) const;
  // Returns the place of the rank in its sorted group, which is how communicators number their members.
  std::optional<int> group_rank(GroupKind kind, int rank) const;

  // Returns everything about one rank at once.
  RankPlace place(int rank) const;

 private:
  // How the groups of a kind are cut out of a grid. The ranks along `axes` form a parent group; write its places as
  // (outer, member, inner), the last varying fastest: each (outer, inner) is one group, of `size` members that are
  // `inner` places apart. A kind that is not cut further has inner 1 and the size of the parent.
  struct Cut {
    const AxisGrid& grid;
    AxisSet axes;
    int inner;
    int size;
    int parent_size() const { return grid.group_size(axes); }
    int groups_per_parent() const { return parent_size() / size; }
  };
  Cut cut(GroupKind kind) const;
  Cut cut_level(const AxisGrid& grid, AxisSet axes, std::span<const int> sizes, int level) const;

  const PipelineRanks* pipeline_function(GroupKind kind) const;  // nullptr except for the embedding kinds
  std::vector<int> pipeline_group(const PipelineRanks& choose, GroupKind kind, int index) const;
  std::vector<int> instance_group(int index) const;
  int edp_per_instance() const { return edp() / shape_.num_distributed_optimizer_instances; }
  int src_rank(GroupKind kind, int rank) const;
  void check_rank(int rank) const;

  GridShape shape_;
  AxisGrid dense_;
  AxisGrid expert_;
  PipelineRanks embedding_;
  PipelineRanks position_embedding_;
};

}  // namespace megalith::layout
