// Tuning of NCCL's communicators, per group, from options.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megalith/comm/backend/nccl_settings.h"

namespace megalith::parallel {

// Returns the groups that work inside layers and between stages: tensor, context and expert parallelism, and both
// directions of the pipeline. On high-priority streams their messages start alongside compute instead of after its next
// wave of blocks.
std::vector<std::string> default_high_priority_groups();

// Returns the groups that a user's words mean: names of groups, Megatron's names for some of them, and "pp", which also
// includes the messages between stages. Throws ConfigError, beginning with `option`, for a group that does not exist.
std::vector<std::string> nccl_groups_named(std::span<const std::string> words, const std::string& option);

// Thread blocks of a collective beside a product, one multiprocessor each. NCCL's own choice, up to 32, would take a
// quarter of an H100 from the product; 16 take an eighth and still fill its NVLink.
inline constexpr int kOverlappedCtas = 16;

// The user's settings for NCCL.
struct NcclOptions {
  std::vector<std::string> high_priority_groups = default_high_priority_groups();  // group names
  std::optional<std::string> config_file{};  // see parse_nccl_config; std::nullopt means none
  bool sharp = false;                        // reduce gradients inside the switches
  // Collectives of tp overlap with products and get at most kOverlappedCtas thread blocks, unless the file has settings
  // for the group.
  bool overlapped_tp = false;
};

// Returns the settings of each communicator; others keep NCCL's own. Throws ConfigError for an unusable file.
comm::NcclSettings nccl_settings(const NcclOptions& options);

// Parses the file named by nccl_communicator_config_path, in Megatron's format: group names with cga_cluster_size,
// min_ctas, max_ctas, net_name and is_high_priority_stream. `path` is used in messages.
comm::NcclSettings parse_nccl_config(const std::string& yaml, const std::string& path);

}  // namespace megalith::parallel
