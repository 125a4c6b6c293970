// Ring attention and gathered attention: queries stay on their rank, keys and values come to them.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/comm/group.h"
#include "megalith/ops/attention/attention.h"

namespace megalith::nn {

// Arguments and result as context_attention; `tokens` has several ranks.

// Ring: step i computes with the keys and values of rank - i while that block is passed on and the next one arrives.
// Besides its own block a rank holds two. Backward passes the blocks around again, each followed by its gradient. Uses
// only send and recv: (ranks - 1) blocks in forward, as many in backward, and `ranks` fp32 gradients.
at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const ops::SequenceLayout& slice, const ops::AttentionOptions& options,
                          const comm::Group& tokens);

// All-gathers keys and values in forward and again in backward, and reduce-scatters their gradients. Holds the blocks
// of all ranks while it computes.
at::Tensor gathered_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const ops::SequenceLayout& slice, const ops::AttentionOptions& options,
                              const comm::Group& tokens);

}  // namespace megalith::nn
