// Cross-entropy over a vocabulary that may be split over a tensor-parallel group. Never makes an fp32 copy of the
// logits: rows are read in their own dtype, and backward overwrites the logits with their gradient.
//
// Legend: t tokens, v the vocabulary's columns on this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "megalith/comm/group.h"

namespace megalith::ops {

// This rank's part of the vocabulary. Padding columns are not part of it: they take no probability.
struct VocabRange {
  int64_t begin = 0;  // first token id held here
  int64_t end = 0;    // one behind the last; begin == end: none
  int64_t total = 0;  // size of the whole vocabulary
};

struct CrossEntropyOptions {
  int64_t ignore_index = -100;  // labels with a loss of 0
  // The reference's α: s = αK/(K-1), loss = (1-s)·nll - s·mean log p, over the whole vocabulary K whatever tp is.
  double label_smoothing = 0;
  double z_loss = 0;  // adds z_loss · (log Σ exp)² to the loss of each token
};

// logits [t, columns] (columns >= range.end - range.begin: the rest is padding), labels int64 [t] (ids of the whole
// vocabulary; anything else than ignore_index outside of it: DataError naming the token) -> losses fp32 [t], equal on
// all ranks of `tp`.
// The logits are consumed: backward writes their gradient over them; a second backward is refused. Two all-reduces in
// forward ([t] and 2 or 3 times [t] floats), none in backward. All ranks of `tp` call it. fp64 logits: losses in fp64.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                         const comm::Group& tp, const CrossEntropyOptions& options);

// The parts, without autograd, for the chunked projection with the loss inside.
struct CrossEntropyStats {
  at::Tensor loss;         // fp32 [t]
  at::Tensor log_sum_exp;  // fp64 [t], over the whole vocabulary: differences to logits of 1000 keep fp32's digits
};
CrossEntropyStats cross_entropy_forward(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                                        const comm::Group& tp, const CrossEntropyOptions& options);
// Both at once, for a caller that knows beforehand the gradient that every loss will get: returns the losses, and
// overwrites logits (dense rows) with grad · d(Σ loss)/d(logits).
at::Tensor cross_entropy_with_grad_(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                                    const comm::Group& tp, const CrossEntropyOptions& options, double grad);
// Overwrites logits with d(Σ grad_loss·loss)/d(logits); padding columns become 0. grad_loss fp32 [t].
void cross_entropy_backward_(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& log_sum_exp,
                             const at::Tensor& grad_loss, const VocabRange& range, const CrossEntropyOptions& options);

}  // namespace megalith::ops
