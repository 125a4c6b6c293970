#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "megalith/base/error.h"
#include "megalith/comm/op/current_device.h"
#include "megalith/ops/kernel/tensor_internal.h"

namespace megalith::ops {

// Kernels start on the current device: a tensor of another one would be read through a wrong context, hence the check.
void* stream_of(const at::Tensor& x, std::source_location place) {
  comm::check_device_current(x.device(), place.function_name());
  const c10::impl::VirtualGuardImpl device(x.device().type());
  return reinterpret_cast<void*>(device.getStream(x.device()).native_handle());
}

// Declared in cuda_math.cuh, which host code cannot include.
[[noreturn]] void fail_kernel(const char* kernel, const char* why);
void fail_kernel(const char* kernel, const char* why) {
  throw InternalError(fmt::format("the CUDA kernel {} could not be started: {}", kernel, why));
}

at::Tensor floats_for(const at::Tensor& x, int64_t count) { return at::empty({count}, x.options().dtype(at::kFloat)); }

}  // namespace megalith::ops
