// The options that tune NCCL, as settings of its communicators.
#pragma once

#include <string>

#include "megalith/comm/backend/nccl_settings.h"
#include "megalith/config/parallel_config.h"

namespace megalith::parallel {

// high_priority_stream_groups, nccl_communicator_config_path and use_sharp. Without the first, the groups that work
// inside of layers and between stages (tp, cp, ep, pp) have streams of high priority, so that their messages start
// beside compute instead of behind its next wave. Throws ConfigError for a group that does not exist and for a file
// that cannot be used.
comm::NcclSettings nccl_settings(const config::CommConfig& options);

// What nccl_communicator_config_path names, as Megatron's files are: group names with cga_cluster_size, min_ctas,
// max_ctas, net_name and is_high_priority_stream. `path` stands in messages.
comm::NcclSettings parse_nccl_config(const std::string& yaml, const std::string& path);

}  // namespace megalith::parallel
