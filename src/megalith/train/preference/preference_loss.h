// What a pair of answers costs: DPO and its relatives.
//
// With β pref_beta, ε dpo_label_smoothing, σ the logistic function; p and r the log-probabilities of an answer by the
// policy and by the reference model (_c chosen, _w rejected), n the tokens of an answer, a = p / n, and
// d = (p_c - p_w) - (r_c - r_w):
//
//   sigmoid   -(1-ε) log σ(βd) - ε log σ(-βd)                         DPO; ε > 0: conservative DPO
//   robust    (-(1-ε) log σ(βd) + ε log σ(-βd)) / (1 - 2ε)            unbiased when a share ε of the pairs is swapped
//   hinge     max(0, 1 - βd)                                          SLiC
//   ipo       ((p_c - r_c)/n_c - (p_w - r_w)/n_w - 1/(2β))²
//   orpo      -a_c - β log σ(o),  o = (a_c - a_w) - (log(1 - exp a_c) - log(1 - exp a_w))
//   simpo     -log σ(β(a_c - a_w) - γ)                                γ simpo_gamma
//
// To each pref_ftx · (-a_c) is added.
//
// Legend: p pairs of a micro-batch.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/train/settings/preference_settings.h"

namespace megalith::train {

// Of the chosen answers, then of the rejected ones; fp32 [2p], on one device.
struct AnswerScores {
  at::Tensor policy;     // log-probabilities
  at::Tensor reference;  // the same by the reference model; may be undefined where the loss needs none
  at::Tensor tokens;     // of each answer, at least 1
};

// fp32 [p] each.
struct PreferenceTerms {
  at::Tensor losses;    // with the policy's graph; the others have none
  at::Tensor chosen;    // rewards: β(p - r), or βa where there is no reference
  at::Tensor rejected;  //
  at::Tensor sft;       // -a of the chosen answers
  at::Tensor odds;      // -log σ(o); orpo only, otherwise undefined
};

// Requires scores.reference where config::needs_reference says so.
PreferenceTerms preference_terms(const AnswerScores& scores, const PreferenceSettings& how);

}  // namespace megalith::train
