// The functions of include/cuda_runtime.h that remember something.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <map>

#include "tests/cuda_emulation/shared_memory.h"

namespace {

std::string last_failure;
bool failed = false;
std::map<std::pair<int, const void*>, size_t> allowed_bytes;  // bytes of dynamic shared memory, by device and kernel

constexpr size_t kUsualBytes = 48 << 10;  // more has to be asked for

}  // namespace

namespace megalith::cuda_emulation {

namespace {

// Why a device would not take a launch; empty when it does.
std::string refusal(const void* kernel, const cudaLaunchConfig_t& config, const Arguments& arguments) {
  const int device = current_device();
  const auto found = allowed_bytes.find({device, kernel});
  const size_t allowed =
      std::min(kMostDynamicBytes, found == allowed_bytes.end() ? kUsualBytes : std::max(kUsualBytes, found->second));
  if (config.dynamicSmemBytes > allowed)
    return fmt::format("{} bytes of dynamic shared memory; {} are allowed", config.dynamicSmemBytes, allowed);
  if (config.stream != nullptr && config.stream->device != device)
    return fmt::format("the stream is of device {}, but the kernel is started on device {}", config.stream->device,
                       device);
  return misplaced_memory(arguments);
}

}  // namespace

void allow_shared_bytes(const void* kernel, size_t bytes) { allowed_bytes[{current_device(), kernel}] = bytes; }

cudaError_t start(const void* kernel, const cudaLaunchConfig_t& config, const Arguments& arguments,
                  const std::function<void()>& call) {
  Grid grid{{config.gridDim.x, config.gridDim.y, config.gridDim.z},
            {config.blockDim.x, config.blockDim.y, config.blockDim.z}};
  grid.shared_bytes = config.dynamicSmemBytes;
  grid.stream = config.stream;
  for (unsigned i = 0; i < config.numAttrs; ++i) grid.cluster = config.attrs[i].val.clusterDim.x;
  last_failure = refusal(kernel, config, arguments);
  if (last_failure.empty()) last_failure = run(grid, call);
  failed = !last_failure.empty();
  return failed ? cudaErrorLaunchFailure : cudaSuccess;
}

}  // namespace megalith::cuda_emulation

cudaError_t cudaGetLastError() { return std::exchange(failed, false) ? cudaErrorLaunchFailure : cudaSuccess; }
const char* cudaGetErrorString(cudaError_t /*error*/) { return last_failure.c_str(); }
