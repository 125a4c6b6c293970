// Small questions about tensors that the checking halves (x.cc) of several operations ask.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <initializer_list>
#include <optional>
#include <source_location>
#include <string>

namespace megalith::ops {

// What a kernel on x computes in: acc_t of cpu_math.h as a dtype.
inline at::ScalarType acc_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// How autograd functions take tensors that may be missing.
inline std::optional<at::Tensor> if_defined(const at::Tensor& t) {
  return t.defined() ? std::optional(t) : std::nullopt;
}

// Whether an operation on these has to be recorded. Undefined tensors do not count.
inline bool needs_gradient(std::initializer_list<at::Tensor> inputs) {
  if (!c10::GradMode::is_enabled()) return false;
  for (const at::Tensor& input : inputs)
    if (input.defined() && input.requires_grad()) return true;
  return false;
}

// For kernels that step over rows or heads: t itself when its last dimension is dense, otherwise a copy.
inline at::Tensor dense_last(const at::Tensor& t) { return t.size(-1) <= 1 || t.stride(-1) == 1 ? t : t.contiguous(); }

// In the backward of an autograd function: whether only the engine still holds this incoming gradient, so that the
// result may be written over it. The two holders are the engine's list and the copy of it that the function is called
// with; a caller, a hook or a view of it would be a third.
inline bool may_write_over(const at::Tensor& grad) {
  return grad.use_count() <= 2 && grad.storage().use_count() == 1 && grad.is_contiguous();
}

// "[2, 3]", for messages.
std::string shape_text(const at::Tensor& t);

// What a norm multiplies x̂ with: the weight, or 1 + weight; dtype acc [h], contiguous.
at::Tensor norm_multiplier(const at::Tensor& weight, bool zero_centered, at::ScalarType acc);

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
