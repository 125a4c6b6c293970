// ReferenceModel: what preferences are measured against. It is only run forward: it has neither gradients nor optimizer
// state.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/model/virtual_models.h"
#include "megalith/train/step/microbatch_runner.h"

namespace megalith::train {

// One thread a rank; every rank has its part of the model, laid out as the policy is. The models' context outlives it.
class ReferenceModel {
 public:
  // A model of its own: a copy of the policy, or another with the same vocabulary.
  ReferenceModel(model::VirtualModels models, const StepSettings& settings);
  // The policy itself, below its adapter (model::WithoutAdapter). `policy` outlives it.
  static std::unique_ptr<ReferenceModel> below_adapter(model::VirtualModels& policy, const StepSettings& settings);
  ReferenceModel(const ReferenceModel&) = delete;
  ReferenceModel& operator=(const ReferenceModel&) = delete;
  ~ReferenceModel();

  // log p of each sequence of each (whole) micro-batch, fp32 [sequences], on the last stage; undefined for
  // micro-batches without samples; nothing on other stages. Runs by the pipeline's schedule. Collective over the
  // pipeline, tensor- and context-parallel ranks of a replica.
  std::vector<at::Tensor> log_probabilities(std::span<const data::MicroBatch> batches);

  // The smallest number of micro-batches >= count that the schedule takes.
  int group_size(int count) const { return runner_.evaluation_group(count); }
  // The rank of a replica of the data that tells what log_probabilities gave.
  bool speaks_for_replica() const { return runner_.counts_for_replica(); }

 private:
  class Scorer;

  // One of `own` and `policy`.
  ReferenceModel(std::unique_ptr<model::VirtualModels> own, model::VirtualModels* policy, const StepSettings& settings);

  const std::unique_ptr<model::VirtualModels> own_;  // nullptr: the policy's
  model::VirtualModels& models_;
  TraceRecorder no_trace_;  // nobody looks: the policy's passes are what a timeline shows
  std::unique_ptr<Scorer> scorer_;
  MicrobatchRunner runner_;
};

}  // namespace megalith::train
