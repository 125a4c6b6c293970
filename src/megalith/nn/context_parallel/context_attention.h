// Attention over the tokens of all context-parallel ranks: ops::attention for sliced sequences.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/nn/context_parallel/context_parallel.h"
#include "megalith/ops/attention/attention.h"

namespace megalith::nn {

// q [t, n, d], k [t, g, d], v [t, g, e] of this rank's slice -> [t, n, e]; causal. `slice` is a slice_layout over the
// ranks of `cp`. Equals ops::attention over the whole, sliced, with all gradients. Partial results and their gradients
// are summed in fp32. All ranks of `cp` call it, in the same order, and run its backward. With one rank it is
// ops::attention. Throws ConfigError for dropout on several ranks, which is not supported.
at::Tensor context_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const ops::SequenceLayout& slice, const ops::AttentionOptions& options,
                             const ContextParallel& cp);

}  // namespace megalith::nn
