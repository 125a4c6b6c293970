// The columns of kept tokens among those of a rank: a rank holds a part of the vocabulary, and the tokens that a
// teacher's files keep may be on any.
//
// Legend: c tokens of a slice, k kept tokens for each, v columns of the vocabulary on this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/comm/group.h"
#include "megalith/ops/loss/cross_entropy.h"

namespace megalith::train {

// Logits of all columns, and where the kept tokens are among them.
class KeptColumns {
 public:
  // `columns` [c, v] are the valid ones of `range`; `ids` int64 [c, k], the same on all ranks.
  KeptColumns(const at::Tensor& columns, const at::Tensor& ids, const ops::VocabRange& range);

  // Returns the logits of the kept tokens, [c, k], on all ranks. Collective over tp.
  at::Tensor kept(const comm::Group& tp) const;
  // Returns log Σ exp of the logits of all other tokens, [c]; -inf if there are none. Collective over tp.
  at::Tensor log_sum_of_rest(const comm::Group& tp) const;
  // Returns the gradients of this rank's columns, [c, v]: those of the kept tokens, [c, k], and the share of every
  // other column in `of_rest` [c], the gradient with respect to `log_sum`. Without `of_rest` the others get 0.
  at::Tensor grads(const at::Tensor& of_kept, const at::Tensor& of_rest, const at::Tensor& log_sum) const;

 private:
  // A spare column at the end stands for all tokens that other ranks have.
  at::Tensor extended_;  // [c, v + 1]
  at::Tensor index_;     // int64 [c, k] into extended_
};

}  // namespace megalith::train
