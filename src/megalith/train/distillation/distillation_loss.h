// The loss of a model that is trained towards a teacher: how far its distribution of the next token is from the
// teacher's, as in generalized knowledge distillation (TRL's GKDTrainer.generalized_jsd_loss).
//
// With T kd_temperature, β kd_beta; q the softmax of the model's logits / T and p that of the teacher's logits / T over
// the vocabulary, and KL(a ‖ b) = Σ a (log a - log b), a token costs
//
//   forward_kl   KL(p ‖ q)
//   reverse_kl   KL(q ‖ p)
//   jsd          β KL(p ‖ m) + (1-β) KL(q ‖ m),  m = β p + (1-β) q; β 0 means forward_kl, β 1 reverse_kl, as in TRL
//
// and, with λ kd_ratio, (1-λ) · cross-entropy with its label + λ · kd. The gradients with respect to the model's
// logits z, with d = log q - log p (reverse_kl) or log q - log m (jsd):
//
//   forward_kl   (q - p) / T
//   reverse_kl   q (d - Σ q d) / T
//   jsd          (1-β) q (d - Σ q d) / T
//
// Legend: c tokens of a slice, v columns of the vocabulary on this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "megalith/comm/group.h"
#include "megalith/ops/loss/cross_entropy.h"
#include "megalith/train/settings/distillation_settings.h"

namespace megalith::train {

// Logits of the same tokens by both models, on one device: this rank's columns, [c, at least the range's]. Columns
// beyond the range are padding of the vocabulary, which takes no part.
struct LogitPair {
  at::Tensor student;  // rows are contiguous
  at::Tensor teacher;
};

// The losses of each token, fp32 [c] (fp64 for fp64 logits), 0 where the label is ignored; equal on all ranks of tp.
struct DistillationTerms {
  at::Tensor total;  // (1-λ) lm + λ kd
  at::Tensor kd;
  at::Tensor lm;  // cross-entropy, with the variants of `lm`
};

// Computes the terms of tokens with `labels`, int64 [c]. With `grad`, the gradient that backward will pass for every
// total, overwrites the student's logits with grad · d(Σ total)/d(logits); padding columns get 0. Three all-reduces
// over tp besides those of the cross-entropy: twice [2, c], then [1, c], or [2, c] with jsd. Makes about six fp32
// copies of the logits, so that callers pass slices. All ranks of `tp` call it.
DistillationTerms distillation_terms_(const LogitPair& logits, const at::Tensor& labels, const ops::VocabRange& range,
                                      const comm::Group& tp, const ops::CrossEntropyOptions& lm,
                                      const DistillationSettings& how, std::optional<double> grad);

}  // namespace megalith::train
