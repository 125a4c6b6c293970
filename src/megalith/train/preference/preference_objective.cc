// A step in three parts: begin() runs the reference over all micro-batches (or takes precomputed scores), the pipeline
// runs the policy, and loss() combines the scores of both on the last stage. The reference runs first because both
// models use the same pipeline, one schedule at a time.
#include "megalith/train/preference/preference_objective.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/host_values.h"
#include "megalith/train/preference/preference_loss.h"
#include "megalith/train/preference/sequence_scores.h"

namespace megalith::train {

PreferenceObjective::PreferenceObjective(const PreferenceSettings& how, const parallel::ParallelContext& context,
                                         std::unique_ptr<ReferenceModel> reference)
    : how_(how), context_(context), reference_(std::move(reference)) {}

std::vector<std::string> PreferenceObjective::metrics_keys(Phase /*phase*/) const {
  std::vector<std::string> keys{"rewards/chosen",  "rewards/rejected", "rewards/accuracies",
                                "rewards/margins", "logps/chosen",     "logps/rejected",
                                "sft_loss"};
  if (how_.loss == config::PrefLoss::kOrpo) keys.emplace_back("odds_ratio_loss");
  return keys;
}

// Scores of the reference come with the data (precomputed) or from the model; either way they are on the device before
// the policy runs.
void PreferenceObjective::begin(std::span<const data::MicroBatch> batches, Phase /*phase*/) {
  check(std::ranges::all_of(batches, &data::MicroBatch::preference),
        "preferences are trained on pairs, but the data has single rows");
  const bool scored = std::ranges::all_of(batches, [](const auto& batch) { return batch.reference.defined(); });
  reference_scores_.assign(batches.size(), at::Tensor());
  if (config::needs_reference(how_.loss) && !scored) {
    check(reference_ != nullptr, "pref_loss {} needs a reference model, or data with reference scores",
          config::choice_name(how_.loss));
    reference_scores_ = reference_->log_probabilities(batches);
  }
  tokens_.clear();
  weights_.assign(batches.size(), at::Tensor());
  if (!context_.is_last_stage()) return;
  for (size_t i = 0; i < batches.size(); ++i) {
    if (scored) reference_scores_[i] = ops::to_device(batches[i].reference, context_.device());
    tokens_.push_back(ops::to_device(labelled_tokens(batches[i]), context_.device()));
    if (how_.ld_alpha) weights_[i] = length_weights(batches[i], *how_.ld_alpha, context_);
  }
}

MicrobatchLoss PreferenceObjective::loss(const MicrobatchOutput& output, const data::MicroBatch& batch, int microbatch,
                                         Phase /*phase*/) const {
  const auto number = static_cast<size_t>(microbatch);
  const int64_t pairs = batch.samples;
  const comm::Group cp = context_.cp();
  const AnswerScores scores{.policy = sequence_log_probabilities(output.token_losses, batch, cp, weights_[number]),
                            .reference = reference_scores_[number],
                            .tokens = tokens_[number]};
  const PreferenceTerms terms = preference_terms(scores, how_);
  MicrobatchLoss result{.sum = terms.losses.sum(), .count = pairs, .metrics = {}};
  // All context-parallel ranks compute the same loss, each with the gradient of its own tokens only. What they report
  // is summed, so each reports 1/cp of the value and keeps its whole gradient: x - detach(x)·(1 - 1/cp).
  if (cp.size() > 1) result.sum = result.sum - result.sum.detach() * (1 - 1.0 / cp.size());
  if (cp.rank() != 0) return result;
  const auto report = [&](const char* name, const at::Tensor& values) {
    result.metrics.push_back({name, values.sum(), static_cast<double>(pairs)});
  };
  const at::Tensor logps = scores.policy.detach();
  report("rewards/chosen", terms.chosen);
  report("rewards/rejected", terms.rejected);
  report("rewards/accuracies", terms.chosen.gt(terms.rejected).to(at::kFloat));
  report("rewards/margins", terms.chosen - terms.rejected);
  report("logps/chosen", logps.narrow(0, 0, pairs));
  report("logps/rejected", logps.narrow(0, pairs, pairs));
  report("sft_loss", terms.sft);
  if (terms.odds.defined()) report("odds_ratio_loss", terms.odds);
  return result;
}

}  // namespace megalith::train
