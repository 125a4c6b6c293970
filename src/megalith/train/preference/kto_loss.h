// The loss of single answers with verdicts: Kahneman-Tversky optimization (KTO, huggingface.co/papers/2402.01306, as
// KTOTrainer of trl computes it).
//
// With β pref_beta, p and r the log-probabilities of an answer by the policy and by the reference, g = p - r, n its
// tokens, and K = max(0, mean of g over mismatched answers), an estimate of the KL divergence between both models:
//
//   desirable     kto_chosen_weight · (1 - σ(β(g - K)))
//   undesirable   kto_rejected_weight · (1 - σ(β(K - g)))
//
// To the loss of a desirable answer pref_ftx · (-p / n) is added. A mismatched answer is that of another sample, after
// the prompt of this one.
//
// Legend: s is the number of samples in a micro-batch.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/train/settings/preference_settings.h"

namespace megalith::train {

// Scores of the answers, on one device.
struct VerdictScores {
  at::Tensor policy;     // log-probabilities, fp32 [s]
  at::Tensor reference;  // log-probabilities by the reference model, fp32 [s]
  at::Tensor tokens;     // number of tokens of each answer, at least 1; fp32 [s]
  at::Tensor desirable;  // bool [s]
  at::Tensor kl;         // K, a scalar without a graph
};

// The parts of the loss, fp32 [s] each.
struct KtoTerms {
  at::Tensor losses;   // with the policy's graph
  at::Tensor rewards;  // βg, without a graph
};

// Computes losses and rewards. Answers of one kind alone are fine: there is no division by their number.
KtoTerms kto_terms(const VerdictScores& scores, const KtoSettings& how);

}  // namespace megalith::train
