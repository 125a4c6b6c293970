// The gated delta rule (arXiv:2412.06464), a linear attention with a state of fixed size, and the short convolution
// that precedes it.
//
// Attention keeps all keys and values; the delta rule keeps one matrix S [d, e] per head, which maps keys to values. A
// token corrects the value that S returns for its key, and reads with its query: O(d e) per token, whatever came
// before.
//
// Legend: t tokens, n heads, d size of a key, e size of a value, c channels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "megalith/ops/sequence_layout.h"

namespace megalith::ops {

// Convolves each channel causally with its own weights: y[i] = Σ_j w[:, k-1-j] x[i-j] over the j < k for which token
// i - j is in the sequence of token i. x [t, c], weight [c, k] -> [t, c]. Saves x only.
at::Tensor causal_conv(const at::Tensor& x, const at::Tensor& weight, const SequenceLayout& layout);

// Inputs of every token and head.
struct DeltaRuleInput {
  at::Tensor q, k;       // [t, n, d], used as they are: normalize and scale them before
  at::Tensor v;          // [t, n, e]
  at::Tensor log_decay;  // [t, n], <= 0: logarithm of the part of the state that a step keeps
  at::Tensor beta;       // [t, n], in (0, 1): the part of the state's error that a step corrects
};
// Outputs of every token, and final states.
struct DeltaRuleOutput {
  at::Tensor out;    // [t, n, e], fp32
  at::Tensor state;  // [sequences, n, d, e] fp32, after the last token of each sequence
};

// Tokens of a chunk: products within it grow with its square, steps from chunk to chunk shrink with its size.
inline constexpr int64_t kDeltaRuleChunk = 64;

// Computes, with S the state (0 at the start of each sequence, or `initial` [sequences, n, d, e]), for each token
//   S ← exp(log_decay) S;   S ← S + k ⊗ beta (v − Sᵀ k);   out = Sᵀ q
// in fp32 (fp64 for fp64), in chunks of up to `chunk` tokens: matrix products within a chunk, one step of the
// recurrence from chunk to chunk. Sequences run side by side, whatever their lengths. Differentiable in all tensors.
DeltaRuleOutput gated_delta_rule(const DeltaRuleInput& input, const SequenceLayout& layout,
                                 const at::Tensor& initial = {}, int64_t chunk = kDeltaRuleChunk);

}  // namespace megalith::ops
