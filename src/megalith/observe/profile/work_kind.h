// Classifies the kernels of a GPU by their names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace megalith::observe {

// The kinds into which a profile divides a step.
enum class WorkKind : uint8_t {
  kProducts,       // matrix products
  kAttention,      // fused attention
  kCommunication,  // NCCL's kernels, and the stand-ins of a rehearsal
  kUpdate,         // the optimizer's
  kElementwise,    // element by element, norms, sums, gathers: bound by memory
  kCopies,         // copies and fills by the copy engines
  kOther,
};
inline constexpr size_t kWorkKinds = 7;
// Returns the words of a report: "matrix products".
const char* name(WorkKind kind);

// Classifies a kernel by the name that the profiler gives it, which is that of the function in C++, with namespaces and
// template arguments ("void at::native::vectorized_elementwise_kernel<4, …>"). "Memcpy …" and "Memset …" are copies.
WorkKind work_kind(std::string_view kernel);

// Returns a name that fits a table: without the return type, namespaces, template arguments and parameters, except for
// the functor of ATen's elementwise kernels, which tells them apart ("vectorized_elementwise_kernel<CUDAFunctor_add>").
// At most `width` characters.
std::string short_kernel_name(std::string_view kernel, size_t width = 60);

// Does the same for operators of libtorch. A function of our own in backward, which has the name of a template, is
// called by its class: "torch::autograd::CppNode<megalith::nn::ColumnLinear>" becomes "ColumnLinear (backward)".
std::string short_operator_name(std::string_view name, size_t width = 49);

}  // namespace megalith::observe
