// ReferenceModel: the model that preferences are measured against. It only runs forward, so it has neither gradients
// nor optimizer state.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "megalith/model/virtual_models.h"
#include "megalith/train/preference/sequence_scorer.h"

namespace megalith::train {

// One thread per rank; every rank holds its part of the model, laid out like the policy. The models' context outlives
// it. log_probabilities() changes nothing but its buffers; it may be called between any two steps of the policy.
class ReferenceModel {
 public:
  // Uses separate models: a copy of the policy, or another model with the same vocabulary. `ld_alpha` as in
  // SequenceScorer.
  ReferenceModel(model::VirtualModels models, const StepSettings& settings, std::optional<double> ld_alpha = {});
  // Uses the policy itself without its adapter (model::WithoutAdapter). `policy` outlives it.
  static std::unique_ptr<ReferenceModel> below_adapter(model::VirtualModels& policy, const StepSettings& settings,
                                                       std::optional<double> ld_alpha = {});
  ReferenceModel(const ReferenceModel&) = delete;
  ReferenceModel& operator=(const ReferenceModel&) = delete;

  // Returns log p of each sequence for each (whole) micro-batch, fp32 [sequences], on the last stage: undefined tensors
  // for micro-batches without samples, and an empty vector on other stages. Micro-batches with verdicts get fp32
  // [2·samples]: their own answers, then the mismatched ones. Runs by the pipeline's schedule. Collective over the
  // pipeline-, tensor- and context-parallel ranks of a replica.
  std::vector<at::Tensor> log_probabilities(std::span<const data::MicroBatch> batches);

  // Returns the smallest number of micro-batches >= count that the schedule accepts.
  int group_size(int count) const { return scorer_.runner().evaluation_group(count); }
  // True on exactly one rank per data-parallel replica: the one that reports the results of log_probabilities.
  bool speaks_for_replica() const { return scorer_.runner().counts_for_replica(); }

 private:
  // Exactly one of `own` and `policy` is set.
  ReferenceModel(std::unique_ptr<model::VirtualModels> own, model::VirtualModels* policy, const StepSettings& settings,
                 std::optional<double> ld_alpha);

  const std::unique_ptr<model::VirtualModels> own_;  // nullptr when the policy's models are used
  model::VirtualModels& models_;
  SequenceScorer scorer_;
};

}  // namespace megalith::train
