// KtoObjective: training on single answers with verdicts (trl's KTO trainer). All it takes is a Trainer with this
// objective and a dataset whose samples have Feedback:
//
//   setup.objective = std::make_unique<KtoObjective>(kto, models, step_settings, std::move(reference));
//   Trainer(models, settings, std::move(setup)).train();
//
// begin() runs the policy over the mismatched answers of all micro-batches of a step, forward only, and averages their
// gain over the reference: over the step, and over the data-parallel ranks. So the numbers of a step do not depend on
// how its samples are spread over micro-batches and ranks. In an evaluation the average is that of a group of
// micro-batches.
//
// The loss of a micro-batch is the mean over its answers (kto_loss.h). Log lines also report rewards/chosen,
// rewards/rejected, logps/chosen and logps/rejected, as means over the answers with that verdict, rewards/margins, the
// difference of the two rewards (0 in a step that lacks one kind), and kl.
#pragma once

#include <memory>

#include "megalith/parallel/parallel_context.h"
#include "megalith/train/objectives/objective.h"
#include "megalith/train/preference/reference_model.h"
#include "megalith/train/preference/sequence_scorer.h"
#include "megalith/train/settings/preference_settings.h"

namespace megalith::train {

// One thread per rank.
class KtoObjective : public Objective {
 public:
  // `reference` is nullptr if the samples carry their reference scores. `policy`, the models that are trained, and
  // their context outlive the objective.
  KtoObjective(const KtoSettings& how, model::VirtualModels& policy, const StepSettings& settings,
               std::unique_ptr<ReferenceModel> reference);

  std::vector<std::string> metrics_keys(Phase phase) const override;
  bool wants_correct(Phase /*phase*/) const override { return false; }
  bool has_perplexity() const override { return false; }
  // Multi-token prediction is off: its targets would include tokens of undesirable answers.
  bool trains_attached() const override { return false; }
  // Runs the reference over all answers and the policy over the mismatched ones. Also collective over the data-parallel
  // ranks. Throws InternalError for micro-batches without verdicts, and when neither reference scores nor a reference
  // model are available.
  void begin(std::span<const data::MicroBatch> batches, Phase phase) override;
  MicrobatchLoss loss(const MicrobatchOutput& output, const data::MicroBatch& batch, int microbatch,
                      Phase phase) const override;

 private:
  // The scores of one micro-batch that are known before the policy is trained on it, on the last stage; undefined for
  // fillers.
  struct Known {
    at::Tensor reference;  // fp32 [s]
    at::Tensor tokens;     // fp32 [s]
    at::Tensor desirable;  // bool [s]
  };

  // Sets known_, kl_ and the counts, from log p of the mismatched answers by the policy and of all answers by the
  // reference. Collective over the data-parallel ranks.
  void know(std::span<const data::MicroBatch> batches, const std::vector<at::Tensor>& mismatched,
            const std::vector<at::Tensor>& reference);
  // Returns this micro-batch's part of the margin; the sum of all parts over the samples of the step is the margin.
  at::Tensor margin_part(const at::Tensor& rewards, const at::Tensor& wanted) const;

  const KtoSettings how_;
  const parallel::ParallelContext& context_;
  SequenceScorer policy_;
  const std::unique_ptr<ReferenceModel> reference_;
  // On the last stage, for the step or group that runs. Sums over all data-parallel ranks, as scalars on the device.
  std::vector<Known> known_;
  at::Tensor kl_;
  at::Tensor answers_, desirable_, undesirable_;
};

}  // namespace megalith::train
