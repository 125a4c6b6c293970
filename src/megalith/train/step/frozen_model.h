// FrozenModel: a model beside the one that is trained, which only runs forward, such as the teacher of distillation. It
// has neither gradients nor optimizer state.
#pragma once

#include <memory>
#include <span>

#include "megalith/base/trace.h"
#include "megalith/model/virtual_models.h"
#include "megalith/train/step/microbatch_runner.h"

namespace megalith::train {

// One thread per rank; every rank holds its part of the model, laid out like the one that is trained. The models'
// context outlives it.
class FrozenModel {
 public:
  // `results` keeps what the caller wants of a forward pass: its loss() or run_head() runs on the last stage.
  FrozenModel(model::VirtualModels models, const StepSettings& settings, std::unique_ptr<Objective> results);
  FrozenModel(const FrozenModel&) = delete;
  FrozenModel& operator=(const FrozenModel&) = delete;

  // Runs (whole) micro-batches forward, by the pipeline's schedule. Changes nothing but buffers, so it may be called
  // between any two steps. Collective over the pipeline-, tensor- and context-parallel ranks of a replica.
  void run(std::span<const data::MicroBatch> batches) { runner_.evaluate(batches); }

  const model::VirtualModels& models() const { return models_; }
  const MicrobatchRunner& runner() const { return runner_; }

 private:
  model::VirtualModels models_;
  TraceRecorder no_trace_;  // discarded: a timeline shows only the passes of the model that is trained
  const std::unique_ptr<Objective> results_;
  MicrobatchRunner runner_;
};

}  // namespace megalith::train
