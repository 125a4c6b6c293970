// SequenceScorer: runs a model forward only, and returns log-probabilities of whole sequences.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/model/virtual_models.h"
#include "megalith/train/step/microbatch_runner.h"

namespace megalith::train {

// One thread per rank. `models` and their context outlive it. Runs by the pipeline's schedule, without gradients and
// without dropout; it changes nothing but its buffers, and may be called between any two steps of the models.
class SequenceScorer {
 public:
  // With `ld_alpha`, tokens of pairs are weighed as length_weights (sequence_scores.h) says.
  SequenceScorer(model::VirtualModels& models, const StepSettings& settings, std::optional<double> ld_alpha = {});
  SequenceScorer(const SequenceScorer&) = delete;
  SequenceScorer& operator=(const SequenceScorer&) = delete;
  ~SequenceScorer();

  // Returns log p of each sequence for each (whole) micro-batch, fp32 [sequences], on the last stage: undefined tensors
  // for micro-batches without samples, and an empty vector on other stages. Collective over the pipeline-, tensor- and
  // context-parallel ranks of a replica.
  std::vector<at::Tensor> log_probabilities(std::span<const data::MicroBatch> batches);
  // The same for the mismatched answers of micro-batches with verdicts (MicroBatch::mismatched).
  std::vector<at::Tensor> mismatched_log_probabilities(std::span<const data::MicroBatch> batches);

  const MicrobatchRunner& runner() const { return runner_; }

 private:
  class Scores;

  TraceRecorder no_trace_;  // discarded: a timeline shows only the passes that are trained
  std::unique_ptr<Scores> scores_;
  MicrobatchRunner runner_;
};

}  // namespace megalith::train
