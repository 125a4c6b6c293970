#include "megalith/train/scoring/label_objective.h"

#include <ATen/ATen.h>

namespace megalith::train {

namespace {

using config::ProblemType;

// Losses of the texts, fp32 [s], and whether their scores are right, bool [s] (undefined for a regression).
struct LabelTerms {
  at::Tensor losses, right;
};

// labels [s] -> 1 or 0 for each class, fp32 [s, n].
at::Tensor bits_in(const at::Tensor& labels, int64_t count) {
  const at::Tensor powers = at::pow(2, at::arange(count, labels.options()));
  return labels.unsqueeze(1).bitwise_and(powers).ne(0).to(at::kFloat);
}

LabelTerms terms_of(const at::Tensor& scores, const at::Tensor& labels, ProblemType problem) {
  switch (problem) {
    case ProblemType::kRegression:
      return {(scores.squeeze(1) - numbers_in(labels)).square(), {}};
    case ProblemType::kSingleLabel:
      return {at::cross_entropy_loss(scores, labels, {}, at::Reduction::None), scores.argmax(1).eq(labels)};
    case ProblemType::kMultiLabel:
      break;
  }
  const at::Tensor wanted = bits_in(labels, scores.size(1));
  return {at::binary_cross_entropy_with_logits(scores, wanted, {}, {}, at::Reduction::None).mean(1),
          scores.gt(0).to(at::kFloat).eq(wanted).all(1)};
}

}  // namespace

std::vector<std::string> LabelObjective::metrics_keys(Phase /*phase*/) const {
  if (how_.problem == ProblemType::kRegression) return {};
  return {"accuracy"};
}

MicrobatchLoss LabelObjective::loss(const MicrobatchOutput& output, const data::MicroBatch& batch, int microbatch,
                                    Phase /*phase*/) const {
  const LabelTerms terms = terms_of(scores(output, batch), labels(microbatch), how_.problem);
  MicrobatchLoss result = reported(terms.losses.sum(), batch.sequences);
  if (reports() && terms.right.defined())
    result.metrics.push_back({"accuracy", terms.right.sum().to(at::kFloat), static_cast<double>(batch.sequences)});
  return result;
}

}  // namespace megalith::train
