// PreferenceObjective: training on pairs of answers (the reference's DPO trainer). All it takes is a Trainer with this
// objective and a dataset of pairs:
//
//   setup.objective = std::make_unique<PreferenceObjective>(preferences, context, std::move(reference));
//   Trainer(models, settings, std::move(setup)).train();
//
// Chosen and rejected answers go through the model together, in one forward pass. The loss of a micro-batch is the mean
// over its pairs (preference_loss.h), so calculate_per_token_loss does not apply. Log lines also report, as means over
// the pairs: rewards/chosen, rewards/rejected, rewards/accuracies (share of pairs with chosen above rejected),
// rewards/margins, logps/chosen, logps/rejected (of whole answers), sft_loss (per token of the chosen answers) and,
// with orpo, odds_ratio_loss.
#pragma once

#include <memory>

#include "megalith/parallel/parallel_context.h"
#include "megalith/train/objectives/objective.h"
#include "megalith/train/preference/reference_model.h"
#include "megalith/train/settings/preference_settings.h"

namespace megalith::train {

// One thread per rank.
class PreferenceObjective : public Objective {
 public:
  // `reference` is nullptr if the loss needs none (config::needs_reference) or if the samples carry their reference
  // scores. `context` outlives the objective.
  PreferenceObjective(const PreferenceSettings& how, const parallel::ParallelContext& context,
                      std::unique_ptr<ReferenceModel> reference);

  std::vector<std::string> metrics_keys(Phase phase) const override;
  bool wants_correct(Phase /*phase*/) const override { return false; }
  bool has_perplexity() const override { return false; }
  // Multi-token prediction is off: its targets would include tokens of rejected answers.
  bool trains_attached() const override { return false; }
  // Runs the reference model. Throws InternalError for micro-batches that are not pairs, and when scores are needed but
  // neither they nor a reference model are available.
  void begin(std::span<const data::MicroBatch> batches, Phase phase) override;
  MicrobatchLoss loss(const MicrobatchOutput& output, const data::MicroBatch& batch, int microbatch,
                      Phase phase) const override;

 private:
  const PreferenceSettings how_;
  const parallel::ParallelContext& context_;
  const std::unique_ptr<ReferenceModel> reference_;
  // For each micro-batch of the step, on the last stage: fp32 [2p].
  std::vector<at::Tensor> reference_scores_;  // undefined without a reference
  std::vector<at::Tensor> tokens_;
  std::vector<at::Tensor> weights_;  // weights of this rank's tokens, fp32 [t]; undefined without ld_alpha
};

}  // namespace megalith::train
