// The head all-to-all of Ulysses (arXiv:2309.14509): the ranks of a group trade tokens for heads.
//
// Legend: t tokens of a slice, r ranks of the group, c columns (channels of some heads).
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/comm/group.h"
#include "megalith/ops/sequence_layout.h"

namespace megalith::nn {

// [t, r·c] -> [r·t, c]: this rank's columns of the tokens of all ranks, in the order of join_slices. Its backward is
// to_tokens. All ranks of `group` call it, in the same order.
at::Tensor to_heads(const at::Tensor& tokens, const ops::SequenceLayout& slice, const comm::Group& group);
// The inverse: [r·t, c] -> [t, r·c]. Its backward is to_heads.
at::Tensor to_tokens(const at::Tensor& heads, const ops::SequenceLayout& slice, const comm::Group& group);

}  // namespace megalith::nn
