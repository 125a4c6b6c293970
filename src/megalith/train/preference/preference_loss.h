// The loss of a pair of answers: DPO and its relatives.
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
// The others follow trl 1.16 (DPOTrainer), with g = p - r for each answer and τ discopop_tau:
//
//   sigmoid_norm  -log σ(β(g_c/n_c - g_w/n_w))
//   exo_pair      σ(βd)(log σ(βd) - log(1-ε)) + σ(-βd)(log σ(-βd) - log ε)
//   nca_pair      -log σ(βg_c) - ½ log σ(-βg_c) - ½ log σ(-βg_w)
//   bco_pair      -log σ(βg_c) - log σ(-βg_w)                          without the running mean of rewards
//   sppo_hard     (g_c - 1/(2β))² + (g_w + 1/(2β))²
//   aot           sigmoid, of sorted(p_c - p_w) - sorted(r_c - r_w)    sorted over the pairs of a micro-batch
//   aot_unpaired  sigmoid, of sorted(g_c) - sorted(g_w)                likewise
//   apo_zero      1 - σ(βg_c) + σ(βg_w)
//   apo_down      σ(βg_c) + 1 - σ(βd)
//   discopop      -(1-m) log σ(βd) + m exp(-βd),  m = σ(βd/τ)
//
// To each loss pref_ftx · (-a_c) is added. With ld_alpha, p and r weigh the tokens of an answer (sequence_scores.h).
//
// Legend: p is the number of pairs in a micro-batch.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/train/settings/preference_settings.h"

namespace megalith::train {

// Scores of the chosen answers followed by those of the rejected ones; fp32 [2p], on one device.
struct AnswerScores {
  at::Tensor policy;     // log-probabilities
  at::Tensor reference;  // log-probabilities by the reference model; may be undefined if the loss needs none
  at::Tensor tokens;     // number of tokens of each answer, at least 1
};

// The parts of the loss, fp32 [p] each.
struct PreferenceTerms {
  at::Tensor losses;    // with the policy's graph; the others have none
  at::Tensor chosen;    // rewards: β(p - r), or βa without a reference
  at::Tensor rejected;  //
  at::Tensor sft;       // -a of the chosen answers
  at::Tensor odds;      // -log σ(o); orpo only, otherwise undefined
};

// Computes the losses and rewards of all pairs. Requires scores.reference if config::needs_reference is true.
PreferenceTerms preference_terms(const AnswerScores& scores, const PreferenceSettings& how);

}  // namespace megalith::train
