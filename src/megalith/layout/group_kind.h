// The kinds of process groups, with their names.
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace megalith::layout {

// In the order in which the reference creates them (golden groups.json, `creation_order`; the hierarchical cp groups
// follow cp). Code that creates communicators eagerly must do so in this order on every rank. In a name, `tp` means the
// dense tensor axis, except in tp_ep and tp_ep_pp, where it means etp.
enum class GroupKind : int {
  kDpCp,       // dense gradients: reduction and optimizer shards
  kIntraDpCp,  // dp_cp within one optimizer instance
  kDp,         // replicas of the dense model that see the same part of each sequence
  kCp,         // ranks that share each sequence
  kHcp0,       // levels of a hierarchical cp group, neighbors first
  kHcp1,
  kHcp2,
  kHcp3,
  kHcp4,
  kHcp5,
  kHcp6,
  kHcp7,
  kTpPp,               // "model parallel": one copy of the dense model
  kTp,                 // ranks that split each dense matrix
  kPp,                 // the stages of one pipeline
  kEmbedding,          // first and last stage of a pipeline: tied word embeddings
  kPositionEmbedding,  // first stage of a pipeline
  kTpDpCp,             // all ranks of one pipeline stage
  kTpDp,               // the same for one part of the sequences
  kTpCp,               // ranks that share the activations of one replica's stage
  kEp,                 // ranks that share the experts of a layer
  kEtp,                // ranks that split each expert's matrices
  kTpEp,               // one copy of a layer's experts
  kTpEpPp,             // one copy of the experts
  kEdp,                // expert gradients: reduction and optimizer shards
  kIntraEdp,           // edp within one optimizer instance
  kInterEdp,           // the same shard in every optimizer instance; serves dense parameters too
  kIntraDistOpt,       // all ranks of one optimizer instance
};
inline constexpr int kNumGroupKinds = static_cast<int>(GroupKind::kIntraDistOpt) + 1;

// Returns every kind, in creation order.
std::span<const GroupKind> all_group_kinds();
// Returns "dp_cp", "hcp_0", …: the names of golden groups.json and of `preview groups --json`.
std::string_view name(GroupKind kind);
// Returns the kind of that name; std::nullopt for an unknown name.
std::optional<GroupKind> group_kind(std::string_view name);

// Returns the level of a hierarchical cp kind; -1 for every other kind.
int hcp_level(GroupKind kind);

}  // namespace megalith::layout
