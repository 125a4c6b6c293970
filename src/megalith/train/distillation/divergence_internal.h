// The divergences of distillation_loss.h over classes: the tokens of the vocabulary, or those that a teacher's files
// keep.
//
// Legend: c tokens of a slice, m classes on this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "megalith/comm/group.h"
#include "megalith/ops/loss/cross_entropy.h"
#include "megalith/train/distillation/distillation_loss.h"

namespace megalith::train {

// log q and log p, [c, m].
struct LogProbs {
  at::Tensor student, teacher;
};

// A divergence and its gradient with respect to the logits of log q.
struct Divergence {
  at::Tensor values;  // [c]
  at::Tensor grads;   // [c, m]; undefined unless wanted
};

// Returns the divergence that `how` names. The ranks of `tp` share the classes; nullptr: each has all of them.
Divergence divergence_of(const LogProbs& log, const DistillationSettings& how, const comm::Group* tp, bool wants_grad);

// Returns this rank's valid columns of logits / T, in fp32 (fp64 for fp64 logits). May share memory with them, so
// callers must not write to it.
at::Tensor scaled_columns(const at::Tensor& logits, const ops::VocabRange& range, double temperature);

// Returns the largest number of each row; -inf on a rank without columns.
at::Tensor row_maxima(const at::Tensor& x);

// Adds the cross-entropy to a divergence, whose gradients are with respect to scaled_columns(logits), and overwrites
// the logits as distillation_terms_ does.
DistillationTerms combined_terms_(const at::Tensor& logits, const at::Tensor& labels, const ops::VocabRange& range,
                                  const comm::Group& tp, const ops::CrossEntropyOptions& lm,
                                  const DistillationSettings& how, std::optional<double> grad, Divergence kd);

}  // namespace megalith::train
