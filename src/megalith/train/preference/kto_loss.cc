#include "megalith/train/preference/kto_loss.h"

#include <ATen/ATen.h>

namespace megalith::train {

// Both formulas are one: 1 - σ(x) = σ(-x), and the verdict is the sign of x.
KtoTerms kto_terms(const VerdictScores& scores, const KtoSettings& how) {
  const at::Tensor gain = scores.policy - scores.reference;
  const at::Tensor wanted = scores.desirable.to(at::kFloat);
  const at::Tensor sign = 2 * wanted - 1;
  const at::Tensor weight = wanted * how.chosen_weight + (1 - wanted) * how.rejected_weight;
  KtoTerms terms;
  terms.losses = weight * at::sigmoid(-sign * (gain - scores.kl) * how.beta);
  if (how.ftx > 0) terms.losses = terms.losses - wanted * (scores.policy / scores.tokens) * how.ftx;
  terms.rewards = gain.detach() * how.beta;
  return terms;
}

}  // namespace megalith::train
