// The operations of ops/ that kernel_bench measures, at the sizes of real models, with the bytes that they must move.
//
// Legend: t tokens, h hidden, f width of an MLP, v vocabulary, n elements of a flat buffer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace megalith::bench {

using Tensors = std::vector<at::Tensor>;

// One measurement.
struct KernelCase {
  std::string kernel;                  // name, also in the peer's script
  std::string part;                    // forward, backward, or all for a single pass
  std::vector<int64_t> sizes;          // in the order in which the peer takes them
  double bytes = 0;                    // least traffic: every input read once, every result written once
  double flops = 0;                    // work of matrix products inside; 0 if bytes limit it
  std::function<void()> prepare = {};  // called before every run, not timed; may be empty
  std::function<void()> run;           // runs on the current stream
  // Returns the distance from an fp32 answer, ‖a - b‖ / ‖b‖ of the worst result.
  std::function<double()> error;
};

// Makes cases with their tensors. A list of these functions does not need all tensors on the device at once.
using MakeCases = std::function<std::vector<KernelCase>()>;
// Returns operations with a gradient, forward and backward separately.
std::vector<MakeCases> differentiable_cases();
// Returns passes over buffers: updates, norms, losses in place, casts.
std::vector<MakeCases> pass_cases();

// Tokens of every case.
inline constexpr int64_t kTokens = 16384;
// Returns normally distributed values with a standard deviation of 0.5, on the GPU.
at::Tensor random_values(at::IntArrayRef sizes, at::ScalarType dtype = at::kBFloat16);

// Returns ‖a - b‖ / ‖b‖ in fp32.
double relative_error(const at::Tensor& actual, const at::Tensor& expected);

}  // namespace megalith::bench
