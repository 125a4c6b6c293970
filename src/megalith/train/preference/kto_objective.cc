// A step in three parts: begin() runs the reference over all answers and the policy over the mismatched ones, both
// forward only; the pipeline then runs the policy over the answers themselves; and loss() combines the scores on the
// last stage. The passes of begin() come first because all of them use the same pipeline, one schedule at a time.
#include "megalith/train/preference/kto_objective.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/host_values.h"
#include "megalith/train/preference/kto_loss.h"
#include "megalith/train/preference/sequence_scores.h"

namespace megalith::train {

KtoObjective::KtoObjective(const KtoSettings& how, model::VirtualModels& policy, const StepSettings& settings,
                           std::unique_ptr<ReferenceModel> reference)
    : how_(how), context_(policy.context()), policy_(policy, settings), reference_(std::move(reference)) {}

std::vector<std::string> KtoObjective::metrics_keys(Phase /*phase*/) const {
  return {"rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "logps/rejected", "kl"};
}

void KtoObjective::begin(std::span<const data::MicroBatch> batches, Phase /*phase*/) {
  check(std::ranges::all_of(batches, [](const auto& batch) { return batch.mismatched != nullptr; }),
        "stage kto trains on answers with verdicts, but the data has none");
  const bool scored = std::ranges::all_of(batches, [](const auto& batch) { return batch.reference.defined(); });
  check(scored || reference_ != nullptr, "stage kto needs a reference model, or data with reference scores");
  std::vector<at::Tensor> reference;
  if (!scored) reference = reference_->log_probabilities(batches);
  const std::vector<at::Tensor> mismatched = policy_.mismatched_log_probabilities(batches);
  if (!context_.is_last_stage()) return;
  if (scored)
    for (const data::MicroBatch& batch : batches)
      reference.push_back(ops::to_device(batch.reference, context_.device()));
  know(batches, mismatched, reference);
}

// One all-reduce carries the gain over the mismatched answers and all counts.
void KtoObjective::know(std::span<const data::MicroBatch> batches, const std::vector<at::Tensor>& mismatched,
                        const std::vector<at::Tensor>& reference) {
  const at::TensorOptions options = at::TensorOptions(at::kDouble).device(context_.device());
  at::Tensor gain = at::zeros({}, options), desirable = at::zeros({}, options);
  int64_t answers = 0;
  known_.assign(batches.size(), Known());
  for (size_t i = 0; i < batches.size(); ++i) {
    const int64_t samples = batches[i].samples;
    if (samples == 0) continue;  // a filler of an evaluation
    known_[i] = {.reference = reference[i].narrow(0, 0, samples),
                 .tokens = ops::to_device(labelled_tokens(batches[i]), context_.device()),
                 .desirable = ops::to_device(batches[i].desirable, context_.device())};
    gain = gain + (mismatched[i] - reference[i].narrow(0, samples, samples)).sum().to(at::kDouble);
    desirable = desirable + known_[i].desirable.sum().to(at::kDouble);
    answers += samples;
  }
  const at::Tensor totals =
      at::stack({gain, desirable, at::full({}, static_cast<double>(answers), options)}).contiguous();
  context_.group(layout::GroupKind::kDp).all_reduce(totals, comm::ReduceOp::kSum, "gain over mismatched answers");
  const at::Tensor counts = totals.to(at::kFloat);
  answers_ = counts[2];
  desirable_ = counts[1];
  undesirable_ = answers_ - desirable_;
  kl_ = (counts[0] / answers_.clamp_min(1)).clamp_min(0);
}

at::Tensor KtoObjective::margin_part(const at::Tensor& rewards, const at::Tensor& wanted) const {
  const at::Tensor chosen = (rewards * wanted).sum() / desirable_.clamp_min(1);
  const at::Tensor rejected = (rewards * (1 - wanted)).sum() / undesirable_.clamp_min(1);
  const at::Tensor both = desirable_.gt(0).logical_and(undesirable_.gt(0)).to(at::kFloat);
  return (chosen - rejected) * both * answers_;
}

MicrobatchLoss KtoObjective::loss(const MicrobatchOutput& output, const data::MicroBatch& batch, int microbatch,
                                  Phase /*phase*/) const {
  const Known& known = known_[static_cast<size_t>(microbatch)];
  const comm::Group cp = context_.cp();
  const VerdictScores scores{.policy = sequence_log_probabilities(output.token_losses, batch, cp),
                             .reference = known.reference,
                             .tokens = known.tokens,
                             .desirable = known.desirable,
                             .kl = kl_};
  const KtoTerms terms = kto_terms(scores, how_);
  MicrobatchLoss result{.sum = terms.losses.sum(), .count = batch.samples, .metrics = {}};
  // As in PreferenceObjective: each context-parallel rank reports 1/cp of the value and keeps its whole gradient.
  if (cp.size() > 1) result.sum = result.sum - result.sum.detach() * (1 - 1.0 / cp.size());
  if (cp.rank() != 0) return result;
  const auto answers = static_cast<double>(batch.samples);
  const auto chosen = static_cast<double>(batch.desirable.sum().item<int64_t>());  // in the memory of the host
  const auto report = [&](const char* name, const at::Tensor& sum, double weight) {
    result.metrics.push_back({name, sum, weight});
  };
  const at::Tensor logps = scores.policy.detach(), wanted = known.desirable.to(at::kFloat);
  report("rewards/chosen", (terms.rewards * wanted).sum(), chosen);
  report("rewards/rejected", (terms.rewards * (1 - wanted)).sum(), answers - chosen);
  report("rewards/margins", margin_part(terms.rewards, wanted), answers);
  report("logps/chosen", (logps * wanted).sum(), chosen);
  report("logps/rejected", (logps * (1 - wanted)).sum(), answers - chosen);
  report("kl", kl_ * answers, answers);
  return result;
}

}  // namespace megalith::train
