// ReferenceModel: the model that preferences are measured against. It only runs forward, so it has neither gradients
// nor optimizer state.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/model/virtual_models.h"
#include "megalith/train/step/microbatch_runner.h"

namespace megalith::train {

// One thread per rank; every rank holds its part of the model, laid out like the policy. The models' context outlives
// it. log_probabilities() changes nothing but its buffers; it may be called between any two steps of the policy.
class ReferenceModel {
 public:
  // Uses separate models: a copy of the policy, or another model with the same vocabulary.
  ReferenceModel(model::VirtualModels models, const StepSettings& settings);
  // Uses the policy itself without its adapter (model::WithoutAdapter). `policy` outlives it.
  static std::unique_ptr<ReferenceModel> below_adapter(model::VirtualModels& policy, const StepSettings& settings);
  ReferenceModel(const ReferenceModel&) = delete;
  ReferenceModel& operator=(const ReferenceModel&) = delete;
  ~ReferenceModel();

  // Returns log p of each sequence for each (whole) micro-batch, fp32 [sequences], on the last stage: undefined tensors
  // for micro-batches without samples, and an empty vector on other stages. Runs by the pipeline's schedule. Collective
  // over the pipeline-, tensor- and context-parallel ranks of a replica.
  std::vector<at::Tensor> log_probabilities(std::span<const data::MicroBatch> batches);

  // Returns the smallest number of micro-batches >= count that the schedule accepts.
  int group_size(int count) const { return runner_.evaluation_group(count); }
  // True on exactly one rank per data-parallel replica: the one that reports the results of log_probabilities.
  bool speaks_for_replica() const { return runner_.counts_for_replica(); }

 private:
  class Scorer;

  // Exactly one of `own` and `policy` is set.
  ReferenceModel(std::unique_ptr<model::VirtualModels> own, model::VirtualModels* policy, const StepSettings& settings);

  const std::unique_ptr<model::VirtualModels> own_;  // nullptr when the policy's models are used
  model::VirtualModels& models_;
  TraceRecorder no_trace_;  // discarded: a timeline shows only the passes of the policy
  std::unique_ptr<Scorer> scorer_;
  MicrobatchRunner runner_;
};

}  // namespace megalith::train
