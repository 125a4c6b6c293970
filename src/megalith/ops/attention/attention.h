// Attention over packed or dense sequences; one function picks the kernel.
//
//   device   dtypes              kernel                              dropout, window
//   CPU      fp32, bf16, fp16    flash (our own)                     window only
//   CUDA     bf16, fp16          cuDNN; flash-2                      window; flash-2: both
//   CUDA     fp32, bf16, fp16    memory-efficient (CUTLASS)          both
//   any      any                 math                                both
//
// Legend: t query tokens, u key/value tokens, n query heads, g key/value heads (n is a multiple of g: key/value head j
// serves the consecutive query heads j·n/g … (j+1)·n/g - 1), d size of a query/key head, e size of a value head.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "megalith/ops/sequence_layout.h"

namespace megalith::ops {

// An implementation of attention.
enum class AttentionKernel {
  kAuto,       // the fastest that supports the call
  kMath,       // holds scores and probabilities of kMostScores at a time: the reference, and the only one with dropout
               // on the CPU (whose masks are held whole, one byte per score)
  kFlash,      // never holds all scores; our own kernel on the CPU, flash-2 on CUDA
  kCudnn,      // cuDNN, on CUDA only; without dropout. Flash-2 for what it cannot do, or cannot do without plans
  kEfficient,  // libtorch's memory-efficient kernel, on CUDA only: never holds all scores, also in fp32
};

// The most scores that kMath holds at a time, unless those of a single query are more: 256 MiB in fp32.
inline constexpr int64_t kMostScores = int64_t{1} << 26;

// The graphs of cuDNN for attention over sequences of unequal lengths, or with windows. An owner (nn::ParameterSet)
// has one for its device and passes it to each call; without it these go to flash-2. Thread-safe.
class AttentionPlans {
 public:
  virtual ~AttentionPlans() = default;
  virtual int64_t kept() const = 0;  // how many kinds of calls were prepared
};
// Returns nullptr in a build without cuDNN's front end, or if libtorch has not loaded cuDNN.
std::unique_ptr<AttentionPlans> make_attention_plans();

// Scale, mask, dropout and kernel of a call.
struct AttentionOptions {
  double scale = 0;    // factor of q·k; 0 means 1/sqrt(d)
  bool causal = true;  // a query sees the keys up to its own position
  int64_t window = 0;  // with causal, a query sees itself and the window-1 tokens before it; 0 means all
  double dropout = 0;  // on the probabilities; needs a generator
  at::Generator generator;
  AttentionKernel kernel = AttentionKernel::kAuto;
  AttentionPlans* plans = nullptr;  // must outlive the call and its backward
};

// Returns softmax(scale · q kᵀ) v: q [t, n, d], k [u, g, d], v [u, g, e] -> [t, n, e]. `keys` has as many sequences as
// `queries`. If a sequence has more keys than queries, the queries are its last tokens (generation with a cache): the
// causal mask is aligned bottom-right. Throws ConfigError if the requested kernel does not support the call.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const SequenceLayout& queries,
                     const SequenceLayout& keys, const AttentionOptions& options);

// Forward and backward without autograd, for algorithms that merge partial results (ring attention).
struct AttentionResult {
  at::Tensor out;          // [t, n, e]
  at::Tensor log_sum_exp;  // [n, t] fp32
};
// Returns the result of one part, normalized over its own keys. Without dropout.
AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const SequenceLayout& queries, const SequenceLayout& keys,
                                  const AttentionOptions& options);
// Gradients with the shapes and dtypes of q, k and v.
struct AttentionGrads {
  at::Tensor q, k, v;
};
// Returns the gradients of one part, given `out` and `log_sum_exp` of all partial results together.
AttentionGrads attention_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const AttentionResult& result, const SequenceLayout& queries,
                                  const SequenceLayout& keys, const AttentionOptions& options);

// The facts about a call on which the choice of its kernel depends.
struct AttentionTraits {
  at::DeviceType device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
  int64_t head_size = 0, value_size = 0;  // d and e
  bool dropout = false, window = false;
};
// Returns the kernel that kAuto chooses, for the planner, messages, benchmarks and tests.
AttentionKernel choose_attention_kernel(const AttentionTraits& traits);
AttentionKernel choose_attention_kernel(const at::Tensor& q, const at::Tensor& v, const AttentionOptions& options);

}  // namespace megalith::ops
