// The operations of ops/ that kernel_bench measures, at the sizes of real models, with what they have to move.
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

// Something to time.
struct KernelCase {
  std::string kernel;                  // the peer knows it by this name
  std::string part;                    // forward, backward, or all where it is one pass
  std::vector<int64_t> sizes;          // as the peer takes them
  double bytes = 0;                    // that must move: every input read once, every result written once
  double flops = 0;                    // of matrix products inside; 0: bytes decide
  std::function<void()> prepare = {};  // before every run, not timed; empty: nothing
  std::function<void()> run;           // on the current stream
  // How far the answer is from one in fp32, ‖a - b‖ / ‖b‖ of the worst result.
  std::function<double()> error;
};

// Each makes its tensors, so that a list of all of them need not fit on the device at once.
using MakeCases = std::function<std::vector<KernelCase>()>;
// With a gradient: forward and backward apart.
std::vector<MakeCases> differentiable_cases();
// Passes over buffers: updates, norms, losses in place, casts.
std::vector<MakeCases> pass_cases();

// Tokens of every case.
inline constexpr int64_t kTokens = 16384;
// Normally distributed, of standard deviation 0.5, on the GPU.
at::Tensor random_values(at::IntArrayRef sizes, at::ScalarType dtype = at::kBFloat16);

double relative_error(const at::Tensor& actual, const at::Tensor& expected);

}  // namespace megalith::bench
