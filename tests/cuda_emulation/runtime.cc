// The functions of include/cuda_runtime.h that remember something.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <map>

#include "tests/cuda_emulation/shared_memory.h"

namespace {

std::string last_failure;
bool failed = false;
std::map<const void*, size_t> allowed_bytes;  // of dynamic shared memory, by kernel

constexpr size_t kUsualBytes = 48 << 10;  // more has to be asked for

}  // namespace

namespace megalith::cuda_emulation {

void allow_shared_bytes(const void* kernel, size_t bytes) { allowed_bytes[kernel] = bytes; }

cudaError_t start(const void* kernel, const cudaLaunchConfig_t& config, const std::function<void()>& call) {
  const auto found = allowed_bytes.find(kernel);
  const size_t allowed =
      std::min(kMostDynamicBytes, found == allowed_bytes.end() ? kUsualBytes : std::max(kUsualBytes, found->second));
  Grid grid{{config.gridDim.x, config.gridDim.y, config.gridDim.z},
            {config.blockDim.x, config.blockDim.y, config.blockDim.z}};
  grid.shared_bytes = config.dynamicSmemBytes;
  grid.stream = config.stream;
  for (unsigned i = 0; i < config.numAttrs; ++i) grid.cluster = config.attrs[i].val.clusterDim.x;
  last_failure = config.dynamicSmemBytes > allowed ? fmt::format("{} bytes of dynamic shared memory; {} are allowed",
                                                                 config.dynamicSmemBytes, allowed)
                                                   : run(grid, call);
  failed = !last_failure.empty();
  return failed ? cudaErrorLaunchFailure : cudaSuccess;
}

}  // namespace megalith::cuda_emulation

cudaError_t cudaGetLastError() { return std::exchange(failed, false) ? cudaErrorLaunchFailure : cudaSuccess; }
const char* cudaGetErrorString(cudaError_t /*error*/) { return last_failure.c_str(); }
