// Names of group kinds, in the order of the enumeration. They are part of logs, of NCCL configuration files and of
// golden files, so they may not change.
#include "megalith/layout/group_kind.h"

#include <array>

namespace megalith::layout {
namespace {

constexpr std::array<std::string_view, kNumGroupKinds> kNames{"dp_cp",
                                                              "intra_dp_cp",
                                                              "dp",
                                                              "cp",
                                                              "hcp_0",
                                                              "hcp_1",
                                                              "hcp_2",
                                                              "hcp_3",
                                                              "hcp_4",
                                                              "hcp_5",
                                                              "hcp_6",
                                                              "hcp_7",
                                                              "tp_pp",
                                                              "tp",
                                                              "pp",
                                                              "embedding",
                                                              "position_embedding",
                                                              "tp_dp_cp",
                                                              "tp_dp",
                                                              "tp_cp",
                                                              "ep",
                                                              "etp",
                                                              "tp_ep",
                                                              "tp_ep_pp",
                                                              "edp",
                                                              "intra_edp",
                                                              "inter_edp",
                                                              "intra_dist_opt"};

// The enumerators are consecutive from 0.
constexpr auto kKinds = [] {
  std::array<GroupKind, kNumGroupKinds> kinds{};
  for (int i = 0; i < kNumGroupKinds; ++i) kinds[static_cast<size_t>(i)] = static_cast<GroupKind>(i);
  return kinds;
}();

}  // namespace

std::span<const GroupKind> all_group_kinds() { return kKinds; }

std::string_view name(GroupKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::optional<GroupKind> group_kind(std::string_view name_text) {
  for (GroupKind kind : kKinds) {
    if (name(kind) == name_text) return kind;
  }
  return std::nullopt;
}

// Returns -1 for kinds that are not levels of hierarchical context parallelism.
int hcp_level(GroupKind kind) {
  const int level = static_cast<int>(kind) - static_cast<int>(GroupKind::kHcp0);
  return kind >= GroupKind::kHcp0 && kind <= GroupKind::kHcp7 ? level : -1;
}

}  // namespace megalith::layout
