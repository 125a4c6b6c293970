// The kinds of process groups, with their names.
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace megalith::layout {

// In the order in which the reference creates them (golden groups.json, `creation_order`; the hierarchical cp groups
// follow cp). Who creates communicators eagerly must do so in this order on every rank. In a name `tp` means the dense
// tensor axis, except in tp_ep and tp_ep_pp, where it is etp.
enum class GroupKind : int {
  kDpCp,       // dense gradients: reduction and optimizer shards
  kIntraDpCp,  // dp_cp within one optimizer instance
  kDp,
  kCp,
  kHcp0,  // level of a hierarchical cp group, neighbours first
  kHcp1,
  kHcp2,
  kHcp3,
  kHcp4,
  kHcp5,
  kHcp6,
  kHcp7,
  kTpPp,  // "model parallel": one copy of the dense model
  kTp,
  kPp,
  kEmbedding,          // first and last stage of a pipeline: tied word embeddings
  kPositionEmbedding,  // first stage of a pipeline
  kTpDpCp,
  kTpDp,
  kTpCp,
  kEp,
  kEtp,
  kTpEp,
  kTpEpPp,  // one copy of the experts
  kEdp,     // expert gradients: reduction and optimizer shards
  kIntraEdp,
  kInterEdp,      // the same shard in every optimizer instance; serves dense parameters too
  kIntraDistOpt,  // all ranks of one optimizer instance
};
inline constexpr int kNumGroupKinds = static_cast<int>(GroupKind::kIntraDistOpt) + 1;

// Every kind, in creation order.
std::span<const GroupKind> all_group_kinds();
// "dp_cp", "hcp_0", …: the names of golden groups.json and of `preview groups --json`.
std::string_view name(GroupKind kind);
std::optional<GroupKind> group_kind(std::string_view name);

// The level of a hierarchical cp kind; -1 for every other kind.
int hcp_level(GroupKind kind);

}  // namespace megalith::layout
