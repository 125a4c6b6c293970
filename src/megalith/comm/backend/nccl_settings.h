// Tuning of NCCL's communicators, per group.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace megalith::comm {

// Fields that are not set keep NCCL's own choice, which NCCL's environment variables control.
struct NcclGroupSettings {
  bool high_priority_stream = false;    // its kernels are scheduled before compute kernels
  std::optional<int> cga_cluster_size;  // thread blocks per cluster (cooperative group array)
  std::optional<int> min_ctas;          // least and most thread blocks (CTAs) per kernel:
  std::optional<int> max_ctas;          // fewer leave more of the GPU to compute
  std::string net_name;                 // network plugin; if empty, NCCL chooses
  bool sharp = false;                   // reductions inside the switches (CollNet)
  bool operator==(const NcclGroupSettings&) const = default;
};

// By group name ("tp", "dp_cp", …). A group without an entry gets the defaults.
using NcclSettings = std::map<std::string, NcclGroupSettings>;

}  // namespace megalith::comm
