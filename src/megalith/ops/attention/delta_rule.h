// The gated delta rule (arXiv:2412.06464), a linear attention with a state of fixed size, and the short convolution
// before it.
//
// Legend: t tokens, n heads, d size of a key, e size of a value, c channels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "megalith/ops/sequence_layout.h"

namespace megalith::ops {

// Causal convolution of each channel with weights of its own: y[i] = Σ_j w[:, k-1-j] x[i-j] over the j < k tokens of
// the same sequence up to token i. x [t, c], weight [c, k] -> [t, c]. Saves x alone.
at::Tensor causal_conv(const at::Tensor& x, const at::Tensor& weight, const SequenceLayout& layout);

struct DeltaRuleInput {
  at::Tensor q, k;       // [t, n, d], as they are: normalise and scale before
  at::Tensor v;          // [t, n, e]
  at::Tensor log_decay;  // [t, n], <= 0: what a step leaves of the state
  at::Tensor beta;       // [t, n], in (0, 1): how much of what the state gets wrong is corrected
};
struct DeltaRuleOutput {
  at::Tensor out;    // [t, n, e], fp32
  at::Tensor state;  // [sequences, n, d, e] fp32, behind the last token of each sequence
};

// With S the state (0 at the start of each sequence, or `initial` [sequences, n, d, e]), for each token
//   S ← exp(log_decay) S;   S ← S + k ⊗ beta (v − Sᵀ k);   out = Sᵀ q
// in fp32 (fp64 for fp64), by chunks of up to `chunk` tokens: matrix products within a chunk, one step of the
// recurrence from chunk to chunk. Sequences run side by side, whatever their lengths. Differentiable in all tensors.
DeltaRuleOutput gated_delta_rule(const DeltaRuleInput& input, const SequenceLayout& layout,
                                 const at::Tensor& initial = {}, int64_t chunk = 64);

}  // namespace megalith::ops
