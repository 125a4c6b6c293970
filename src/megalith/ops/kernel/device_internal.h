// Which kernels stand behind an operation: those of the CPU, those of CUDA where this build has them, or neither: then
// ATen's own operations do the work (composite_internal.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <source_location>

namespace megalith::ops {

inline constexpr bool kCudaKernels = MEGALITH_CUDA_KERNELS != 0;

inline bool on_cuda_kernel(const at::Tensor& x) {
  return kCudaKernels && x.is_cuda() && x.scalar_type() != at::kDouble;
}
inline bool has_kernel(const at::Tensor& x) { return x.is_cpu() || on_cuda_kernel(x); }

// The stream on which work on x's device is now put: a cudaStream_t. Every launch asks here, so this is where launches
// are checked: throws InternalError unless x's device is the current one of this thread. A kernel that is started
// elsewhere reads another GPU's memory, or none. `place` is the operation that the message names.
void* stream_of(const at::Tensor& x, std::source_location place = std::source_location::current());
// Memory for a kernel on x's device, freed in the order of the stream.
at::Tensor floats_for(const at::Tensor& x, int64_t count);

}  // namespace megalith::ops
