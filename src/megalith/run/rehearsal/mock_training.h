// MockTraining: the training of a run on one rank, with random weights and random tokens in place of files.
//
// A step is that of the run: the same micro-batches, schedule, collectives, update and memory. Losses mean nothing, and
// tokens are spread over experts as by a balanced router.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/model/virtual_models.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/plan/run_shape.h"
#include "megalith/run/resolve/run_plan.h"
#include "megalith/train/train_step.h"

namespace megalith::run {

// Used by the thread of one rank. All ranks of the context make one with the same arguments, and step together.
class MockTraining {
 public:
  // Makes the model. `shape` is complete, with the model of the run; everything must outlive the training. With
  // `scoring`, the model scores sequences.
  MockTraining(const RunSettings& settings, const plan::RunShape& shape, parallel::ParallelContext& context,
               TraceRecorder& trace, const std::optional<ScoringPlan>& scoring = std::nullopt);
  // Makes gradients, optimizer state and the first batch; after it, memory has its level between steps.
  void prepare();

  // Runs a step after prepare(). Returns whether the parameters were updated: not if gradients overflowed.
  bool step();

 private:
  const RunSettings& settings_;
  const plan::RunShape& shape_;
  parallel::ParallelContext& context_;
  TraceRecorder& trace_;
  model::VirtualModels models_;
  std::unique_ptr<train::Objective> objective_;
  std::unique_ptr<train::RerunGuard> guard_;  // outlives optimized_
  std::unique_ptr<train::OptimizedModel> optimized_;
  std::unique_ptr<train::MicrobatchRunner> runner_;
  data::StepBatch batch_;
  std::vector<std::pair<const nn::Router*, at::Tensor>> choices_;  // experts [t, k], of each micro-batch
  int64_t number_ = 0;                                             // steps so far
};

}  // namespace megalith::run
