// Cross-entropy over a vocabulary that may be split over a tensor-parallel group. Never makes an fp32 copy of the
// logits: rows are read in their own dtype, and backward overwrites the logits with their gradient.
//
// Legend: t tokens, v columns of the vocabulary on this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "megalith/comm/group.h"

namespace megalith::ops {

// This rank's part of the vocabulary, without padding columns, which get no probability.
struct VocabRange {
  int64_t begin = 0;  // first token id held here
  int64_t end = 0;    // one past the last; equal to begin if this rank holds none
  int64_t total = 0;  // size of the whole vocabulary
};

// Variants of the loss.
struct CrossEntropyOptions {
  int64_t ignore_index = -100;  // the label of tokens without a loss
  // The share s of the target's probability that is spread over the whole vocabulary of K tokens, whatever tp is:
  // loss = (1-s)·nll - s·mean log p, as Hugging Face has it. Megatron's α spreads over the other K-1 tokens: s =
  // αK/(K-1).
  double label_smoothing = 0;
  double z_loss = 0;  // adds z_loss · (log Σ exp)² to the loss of each token
};

// Returns the losses, fp32 [t] (fp64 for fp64 logits), equal on all ranks of `tp`. All ranks of `tp` must call it.
//   logits   [t, columns]; columns beyond range.end - range.begin are padding
//   labels   int64 [t], ids of the whole vocabulary or ignore_index; others throw DataError, which names the token (on
//            CUDA a device assertion ends the program)
// Consumes the logits: backward overwrites them with their gradient and cannot run a second time. Forward takes two
// all-reduces ([t] floats, then 2 or 3 times [t]), backward none.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                         const comm::Group& tp, const CrossEntropyOptions& options);

// The passes of cross_entropy without autograd, for the chunked projection that computes the loss inside.
struct CrossEntropyStats {
  at::Tensor loss;         // fp32 [t]
  at::Tensor log_sum_exp;  // fp64 [t], over the whole vocabulary: its difference to a logit of 1000 stays exact to fp32
};
CrossEntropyStats cross_entropy_forward(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                                        const comm::Group& tp, const CrossEntropyOptions& options);
// Forward and backward at once, for a caller that knows in advance the gradient `grad` of every loss: returns the
// losses and overwrites the logits (contiguous rows) with grad · d(Σ loss)/d(logits).
at::Tensor cross_entropy_with_grad_(const at::Tensor& logits, const at::Tensor& labels, const VocabRange& range,
                                    const comm::Group& tp, const CrossEntropyOptions& options, double grad);
// Overwrites the logits with d(Σ grad_loss·loss)/d(logits); padding columns become 0. grad_loss is fp32 [t].
void cross_entropy_backward_(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& log_sum_exp,
                             const at::Tensor& grad_loss, const VocabRange& range, const CrossEntropyOptions& options);

}  // namespace megalith::ops
