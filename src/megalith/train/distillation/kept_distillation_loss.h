// The loss of a model that is trained towards the likeliest tokens of a teacher, as files hold them
// (teacher_files.h).
//
// The classes of a token are the k ids that the teacher found likeliest, and with a tail one more for all others
// together. With z the model's logits, T kd_temperature and R = log Σ exp(z/T) over the other tokens,
//
//   tail          q = softmax of [z of the k ids / T, R]    p = [the teacher's own p of the k ids, the rest of 1]
//   without       q = softmax of [z of the k ids / T]       p = the teacher's p of the k ids, divided by their sum
//
// and the divergences of distillation_loss.h are taken over these classes. The first is TRL's loss_add_tail: merging
// the other tokens into one class never increases a divergence, and it is 0 for the teacher itself only if the model
// gives the other tokens the same probability. Without the tail nothing holds the model back from spreading probability
// over tokens that the teacher would not say (arXiv 2503.16870 measures the harm). With all of the
// vocabulary kept there is no other token, and both are the live teacher's loss.
//
// With g the gradient with respect to the logits of the classes (distillation_loss.h, without its 1/T), the logit of a
// kept token gets g / T, and that of any other g_tail · exp(z/T - R) / T.
//
// Legend: c tokens of a slice, k kept tokens, v columns of the vocabulary on this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "megalith/train/distillation/distillation_loss.h"

namespace megalith::train {

// A teacher's likeliest tokens for each of c tokens, the likeliest first; the same on all ranks of tp.
struct KeptClasses {
  at::Tensor ids;        // int64 [c, k]
  at::Tensor log_probs;  // fp32 [c, k]: log p at temperature 1
  // fp32 [c]: log of the probability of all other tokens at the loss's temperature; undefined if the k are all of the
  // vocabulary, and unless the loss has a tail.
  at::Tensor log_tail;
};

// Computes the terms of tokens as distillation_terms_ does, and overwrites the student's logits [c, v] alike. With
// DistillationSettings::classes only the first so many of the k are classes. One all-reduce over tp of [c, k] besides
// those of the cross-entropy, with a tail two more of [c]. All ranks of `tp` call it.
DistillationTerms kept_distillation_terms_(const at::Tensor& student, const KeptClasses& teacher,
                                           const at::Tensor& labels, const ops::VocabRange& range,
                                           const comm::Group& tp, const ops::CrossEntropyOptions& lm,
                                           const DistillationSettings& how, std::optional<double> grad);

// A teacher's likeliest tokens, for files.
struct LikeliestTokens {
  at::Tensor ids;        // int64 [c, k]
  at::Tensor log_probs;  // fp32 [c, k], at temperature 1
  at::Tensor log_tails;  // fp32 [c, temperatures]; -inf if there is no other token
};

// Finds the k likeliest tokens of each row of logits [c, v/tp], and the probability of all others at each temperature.
// Requires k <= range.total. All ranks of `tp` call it and get the same.
LikeliestTokens likeliest_tokens(const at::Tensor& logits, const ops::VocabRange& range, const comm::Group& tp,
                                 int64_t k, const std::vector<double>& temperatures);

}  // namespace megalith::train
