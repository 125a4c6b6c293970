// Attention whose queries stay where they are while keys and values come to them.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/comm/group.h"
#include "megalith/ops/attention/attention.h"

namespace megalith::nn {

// Arguments and result as context_attention; `tokens` has several ranks.

// Ring: step i computes with the block of keys and values that rank - i has sent round, while it is passed on and the
// next one arrives. Besides its own block a rank holds two. Backward sends the blocks round again, and their gradients
// behind them. Nothing but send and recv; (ranks - 1) blocks forward, as many back and `ranks` fp32 gradients.
at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const ops::SequenceLayout& slice, const ops::AttentionOptions& options,
                          const comm::Group& tokens);

// All-gather of keys and values, in backward again; their gradients are reduce-scattered. Holds the blocks of all
// ranks while it computes.
at::Tensor gathered_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const ops::SequenceLayout& slice, const ops::AttentionOptions& options,
                              const comm::Group& tokens);

}  // namespace megalith::nn
