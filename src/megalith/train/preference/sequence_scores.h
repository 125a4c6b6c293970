// Log-probabilities of whole sequences, computed from the losses of their tokens.
//
// Legend: t tokens of a micro-batch on this rank (its context-parallel slice), s its sequences, without the one that
// pads the total.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/comm/group.h"
#include "megalith/data/collator.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::train {

// Sums token losses, fp32 [t] (0 without a label), to Σ log p over the tokens of each sequence, fp32 [s], bitwise the
// same on all ranks of `cp`. `batch` is this rank's slice. Backward reaches this rank's tokens only: the gradient of a
// loss of the result is complete once those of all context-parallel ranks are summed. Collective over cp. With
// `weights`, fp32 [t], each token counts by its weight.
at::Tensor sequence_log_probabilities(const at::Tensor& token_losses, const data::MicroBatch& batch,
                                      const comm::Group& cp, const at::Tensor& weights = {});

// Length desensitization (LD-DPO, huggingface.co/papers/2409.06411): returns the weights of this rank's tokens, fp32
// [t] on the device of the context. The first labeled tokens of an answer weigh 1, as many as the shorter answer of its
// pair has, and the others `alpha`. `whole` is a micro-batch of pairs that has its labels.
at::Tensor length_weights(const data::MicroBatch& whole, double alpha, const parallel::ParallelContext& context);

// Returns the number of labeled tokens of each sequence, at least 1, as fp32 [s]. `batch` is whole and has its labels.
at::Tensor labelled_tokens(const data::MicroBatch& batch);

}  // namespace megalith::train
