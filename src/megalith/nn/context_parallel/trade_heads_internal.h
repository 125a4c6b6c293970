// Ulysses: the ranks of a group trade tokens for heads.
//
// Legend: t tokens of a slice, r ranks of the group, c columns (channels of some heads).
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/comm/group.h"
#include "megalith/ops/sequence_layout.h"

namespace megalith::nn {

// [t, r·c] -> [r·t, c]: this rank's columns of the tokens of all ranks, joined as join_slices says.
// Backward: to_tokens. All ranks of `group` call it, in the same order.
at::Tensor to_heads(const at::Tensor& tokens, const ops::SequenceLayout& slice, const comm::Group& group);
// The way back: [r·t, c] -> [t, r·c]. Backward: to_heads.
at::Tensor to_tokens(const at::Tensor& heads, const ops::SequenceLayout& slice, const comm::Group& group);

}  // namespace megalith::nn
