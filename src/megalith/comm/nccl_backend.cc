// NCCL through c10d; compiled only with MEGALITH_CUDA.
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "megalith/comm/backend/c10d_backend.h"
#include "megalith/comm/world.h"

namespace megalith::comm {

namespace {

using NcclOptions = c10d::ProcessGroupNCCL::Options;

// Tells which stream NCCL's kernels run on, so that they can be measured there. c10d keeps one for each device that it
// has a communicator on, by the device's number.
class VisibleNccl : public c10d::ProcessGroupNCCL {
 public:
  using ProcessGroupNCCL::ProcessGroupNCCL;
  std::optional<c10::Stream> stream_on(at::Device device) const {
    const auto found = ncclStreams_.find(std::to_string(device.index()));
    return found == ncclStreams_.end() ? std::nullopt : std::optional(found->second.unwrap());
  }
};

// Copies the fields that are set. The others keep the value "undefined", with which NCCL reads its own variables.
void apply_settings(const NcclGroupSettings& settings, NcclOptions& options) {
  if (settings.cga_cluster_size) options.config.cgaClusterSize = *settings.cga_cluster_size;
  if (settings.min_ctas) options.config.minCTAs = *settings.min_ctas;
  if (settings.max_ctas) options.config.maxCTAs = *settings.max_ctas;
  if (settings.sharp) options.config.collnetEnable = 1;
  // c10d copies only the pointer and creates the communicator at the first operation, so the name must stay alive.
  if (!settings.net_name.empty()) options.config.netName = strdup(settings.net_name.c_str());
}

}  // namespace

bool nccl_available() { return true; }

std::unique_ptr<Backend> make_nccl_backend(const C10dGroup& group, const std::string& name,
                                           const NcclGroupSettings& settings) {
  const auto options = NcclOptions::create(settings.high_priority_stream);
  // NCCL's own watchdog ends the process without a word about the other ranks, so ours must come first.
  options->timeout = group.timeout + std::chrono::seconds(30);
  options->group_name = name;
  apply_settings(settings, *options);
  const auto nccl = c10::make_intrusive<VisibleNccl>(group.store, group.rank, group.size, options);
  return wrap_c10d(nccl, group.device, make_stream_marks(group.device),
                   [nccl, device = group.device] { return nccl->stream_on(device); });
}

}  // namespace megalith::comm
