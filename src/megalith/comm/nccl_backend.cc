// NCCL through c10d; compiled only with MEGALITH_CUDA.
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "megalith/comm/c10d_backend.h"
#include "megalith/comm/world.h"

namespace megalith::comm {

bool nccl_available() { return true; }

std::unique_ptr<Backend> make_nccl_backend(const C10dGroup& group, const std::string& name) {
  const auto options = c10d::ProcessGroupNCCL::Options::create();
  // NCCL's own watchdog ends the process without a word about the other ranks: ours comes first.
  options->timeout = group.timeout + std::chrono::seconds(30);
  options->group_name = name;
  return wrap_c10d(c10::make_intrusive<c10d::ProcessGroupNCCL>(group.store, group.rank, group.size, options), false);
}

}  // namespace megalith::comm
