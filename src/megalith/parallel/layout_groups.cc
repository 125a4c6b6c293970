// The groups that a run of a given layout uses, with the operations that it runs in them: the list that the self-check
// of `megalith doctor` goes through.
#include "megalith/parallel/layout_groups.h"

namespace megalith::parallel {

using layout::GroupKind;

namespace {

// Whether a kind is used in every run, or only if experts are split differently from the rest.
enum class UsedBy { kEveryRun, kSplitExperts };

struct KindUse {
  GroupKind kind;
  UsedBy used_by;
  GroupUse use;
};

// All kinds with their use, in creation order.
const std::vector<KindUse>& kind_uses() {
  using enum TimedOp;
  constexpr bool kSmall = false;
  const auto of = [](GroupKind kind, const char* purpose, std::vector<TimedOp> operations, bool large = true,
                     UsedBy used_by = UsedBy::kEveryRun) {
    return KindUse{kind, used_by, {kind, purpose, std::move(operations), large}};
  };
  const auto experts = [&](GroupKind kind, const char* purpose, std::vector<TimedOp> operations, bool large = true) {
    return of(kind, purpose, std::move(operations), large, UsedBy::kSplitExperts);
  };
  static const std::vector<KindUse> table{
      of(GroupKind::kDpCp, "gradients", {kAllReduce}),
      of(GroupKind::kIntraDpCp, "optimizer shards", {kReduceScatter, kAllGather}),
      of(GroupKind::kDp, "evaluation", {kAllReduce}, kSmall),
      of(GroupKind::kCp, "attention", {kSendRecv, kAllGather, kReduceScatter, kAllToAll}),
      of(GroupKind::kHcp0, "attention, heads", {kAllToAll}),
      of(GroupKind::kHcp1, "attention, tokens", {kSendRecv}),
      of(GroupKind::kTp, "layers", {kAllReduce, kAllGather, kReduceScatter}),
      of(GroupKind::kPp, "activations", {kSendRecv}),
      of(GroupKind::kEmbedding, "tied embeddings", {kAllReduce}),
      of(GroupKind::kTpDpCp, "fp8 and routing", {kAllReduce}, kSmall),
      experts(GroupKind::kTpCp, "routing", {kAllReduce}, kSmall),
      experts(GroupKind::kEp, "tokens of experts", {kAllToAll}),
      experts(GroupKind::kEtp, "layers of experts", {kAllReduce, kAllGather, kReduceScatter}),
      experts(GroupKind::kTpEp, "tokens of experts", {kAllToAll, kAllGather, kReduceScatter}),
      experts(GroupKind::kEdp, "gradients of experts", {kAllReduce}),
      experts(GroupKind::kIntraEdp, "optimizer shards", {kReduceScatter, kAllGather}),
      of(GroupKind::kInterEdp, "optimizer instances", {kAllReduce}),
  };
  return table;
}

// With ep 1 and etp = tp the expert groups have the same members as the dense ones.
bool splits_experts(const layout::GridShape& shape) { return shape.ep > 1 || shape.expert_tp() != shape.tp; }

// Kinds that are not levels have level -1 and pass.
bool has_levels(const layout::GridShape& shape, GroupKind kind) {
  return layout::hcp_level(kind) < static_cast<int>(shape.hierarchical_cp.size());
}

}  // namespace

std::string GroupUse::name() const { return kind ? std::string(layout::name(*kind)) : "world"; }

std::optional<comm::Group> GroupUse::group(const ParallelContext& context) const {
  if (!kind) return context.world().world();
  return context.in_group(*kind) ? std::optional(context.group(*kind)) : std::nullopt;
}

std::vector<GroupUse> groups_of_run(const layout::RankGrid& grid) {
  std::vector<GroupUse> uses;
  // Groups of one rank do not communicate.
  for (const KindUse& each : kind_uses()) {
    if (each.used_by == UsedBy::kSplitExperts && !splits_experts(grid.shape())) continue;
    if (!has_levels(grid.shape(), each.kind) || grid.group(each.kind, 0).size() < 2) continue;
    uses.push_back(each.use);
  }
  if (grid.world_size() > 1) uses.push_back({std::nullopt, "norm, metrics, agreement", {TimedOp::kAllReduce}});
  return uses;
}

}  // namespace megalith::parallel
