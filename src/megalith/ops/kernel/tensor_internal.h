// Small helpers for tensors, shared by the host halves (x.cc) of the operations. An operation chooses in this order:
//
//   on_cuda_kernel(x)    our CUDA kernel (fp32, bf16, fp16)
//   x.is_cpu()           our CPU kernel (also fp64)
//   otherwise            ATen's operations (…_composite)
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <initializer_list>
#include <optional>
#include <source_location>
#include <string>

namespace megalith::ops {

// Returns the dtype that a kernel on x computes in: acc_t of cpu_math.h.
inline at::ScalarType acc_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Returns t as an optional, as autograd functions take tensors that may be missing.
inline std::optional<at::Tensor> if_defined(const at::Tensor& t) {
  return t.defined() ? std::optional(t) : std::nullopt;
}

// Whether autograd has to record an operation on these tensors, which may be undefined.
inline bool needs_gradient(std::initializer_list<at::Tensor> inputs) {
  if (!c10::GradMode::is_enabled()) return false;
  for (const at::Tensor& input : inputs)
    if (input.defined() && input.requires_grad()) return true;
  return false;
}

// Returns t itself if its last dimension is contiguous, otherwise a copy: for kernels that step over rows or heads.
inline at::Tensor dense_last(const at::Tensor& t) { return t.size(-1) <= 1 || t.stride(-1) == 1 ? t : t.contiguous(); }

// In the backward of an autograd function: whether only the engine still holds this incoming gradient, so that the
// result may be written over it. The two holders are the engine's list and the copy of it that the function is called
// with; a caller, a hook or a view of it would be a third.
inline bool may_write_over(const at::Tensor& grad) {
  return grad.use_count() <= 2 && grad.storage().use_count() == 1 && grad.is_contiguous();
}

// Returns the shape as "[2, 3]", for messages.
std::string shape_text(const at::Tensor& t);

// Returns the factor of x̂ in a norm, the weight or 1 + weight: acc [h], contiguous.
at::Tensor norm_multiplier(const at::Tensor& weight, bool zero_centered, at::ScalarType acc);

// Whether this build contains the CUDA kernels.
inline constexpr bool kCudaKernels = MEGALITH_CUDA_KERNELS != 0;

// Whether x is for a CUDA kernel (which know no fp64), or for any kernel of ours; otherwise ATen's operations serve.
inline bool on_cuda_kernel(const at::Tensor& x) {
  return kCudaKernels && x.is_cuda() && x.scalar_type() != at::kDouble;
}
inline bool has_kernel(const at::Tensor& x) { return x.is_cpu() || on_cuda_kernel(x); }

// Returns the current stream of x's device, a cudaStream_t. Every launch asks here, so launches are checked here, too:
// throws InternalError unless x's device is the current one of this thread. (A kernel launched on another device would
// read that GPU's memory, or fail.) `place` is the operation that the message names.
void* stream_of(const at::Tensor& x, std::source_location place = std::source_location::current());
// Returns scratch memory of `count` floats on x's device. The allocator reuses it in the order of the stream.
at::Tensor floats_for(const at::Tensor& x, int64_t count);

}  // namespace megalith::ops
