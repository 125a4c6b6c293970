// How NCCL's communicators are tuned, group by group.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megalith/comm/backend/nccl_settings.h"

namespace megalith::parallel {

// The groups that work inside layers and between stages: tensor, context and expert parallelism, and both directions of
// the pipeline. With streams of high priority their messages start beside compute instead of behind its next wave.
std::vector<std::string> default_high_priority_groups();

// The groups that a user's words stand for: names of groups, Megatron's names for some of them, and "pp" for the
// messages between stages as well. Throws ConfigError, which begins with `option`, for a group that does not exist.
std::vector<std::string> nccl_groups_named(std::span<const std::string> words, const std::string& option);

struct NcclOptions {
  std::vector<std::string> high_priority_groups = default_high_priority_groups();  // by the names of their groups
  std::optional<std::string> config_file{};  // see parse_nccl_config; std::nullopt: there is none
  bool sharp = false;                        // gradients are reduced in the switches
};

// The settings of each communicator; the others keep NCCL's own. Throws ConfigError for a file that cannot be used.
comm::NcclSettings nccl_settings(const NcclOptions& options);

// What nccl_communicator_config_path names, as Megatron's files are: group names with cga_cluster_size, min_ctas,
// max_ctas, net_name and is_high_priority_stream. `path` stands in messages.
comm::NcclSettings parse_nccl_config(const std::string& yaml, const std::string& path);

}  // namespace megalith::parallel
