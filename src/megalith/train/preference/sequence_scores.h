// Log-probabilities of whole sequences, from the losses of their tokens.
//
// Legend: t tokens of a micro-batch on this rank (its context-parallel slice), s its sequences, without the one that
// fills up the total.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/comm/group.h"
#include "megalith/data/collator.h"

namespace megalith::train {

// fp32 [t] losses of tokens (0 where there is no label) -> fp32 [s]: Σ log p over the tokens of each sequence, on all
// ranks of `cp` the same bits. `batch` is this rank's slice. Backward goes to this rank's tokens alone: a loss of the
// result has its whole gradient when those of all context-parallel ranks are added up. Collective over cp.
at::Tensor sequence_log_probabilities(const at::Tensor& token_losses, const data::MicroBatch& batch,
                                      const comm::Group& cp);

// fp32 [s]: how many tokens of each sequence have a label, at least 1. `batch` is whole and has its labels.
at::Tensor labelled_tokens(const data::MicroBatch& batch);

}  // namespace megalith::train
