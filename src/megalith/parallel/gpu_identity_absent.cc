// Replaces gpu_identity_cuda.cc in a build without CUDA.
#include "megalith/parallel/rank_device.h"

namespace megalith::parallel {

std::optional<GpuIdentity> gpu_identity(c10::Device /*device*/) { return std::nullopt; }

}  // namespace megalith::parallel
