// A scorer is an evaluation whose objective keeps scores instead of losses, so it shares the runner, the schedule and
// the context-parallel slicing with training.
#include "megalith/train/preference/sequence_scorer.h"

#include <ATen/ATen.h>

#include <utility>

#include "megalith/base/error.h"
#include "megalith/train/preference/sequence_scores.h"

namespace megalith::train {

// An objective without a loss: keeps the log-probabilities of the micro-batches that ran last.
class SequenceScorer::Scores : public Objective {
 public:
  Scores(const parallel::ParallelContext& context, std::optional<double> ld_alpha)
      : context_(context), ld_alpha_(ld_alpha) {}

  std::vector<at::Tensor> take() { return std::move(scores_); }

  std::vector<std::string> metrics_keys(Phase /*phase*/) const override { return {}; }
  bool wants_correct(Phase /*phase*/) const override { return false; }
  void begin(std::span<const data::MicroBatch> batches, Phase /*phase*/) override {
    scores_.assign(batches.size(), at::Tensor());
    weights_.assign(batches.size(), at::Tensor());
    if (!ld_alpha_ || !context_.is_last_stage()) return;
    for (size_t i = 0; i < batches.size(); ++i) weights_[i] = length_weights(batches[i], *ld_alpha_, context_);
  }
  MicrobatchLoss loss(const MicrobatchOutput& output, const data::MicroBatch& batch, int microbatch,
                      Phase /*phase*/) const override {
    const auto number = static_cast<size_t>(microbatch);
    scores_[number] = sequence_log_probabilities(output.token_losses, batch, context_.cp(), weights_[number]);
    return {.sum = at::zeros({}, output.token_losses.options()), .count = 0, .metrics = {}};
  }

 private:
  const parallel::ParallelContext& context_;
  const std::optional<double> ld_alpha_;
  mutable std::vector<at::Tensor> scores_;
  std::vector<at::Tensor> weights_;  // undefined without ld_alpha
};

SequenceScorer::SequenceScorer(model::VirtualModels& models, const StepSettings& settings,
                               std::optional<double> ld_alpha)
    : scores_(std::make_unique<Scores>(models.context(), ld_alpha)),
      runner_(models, settings, models.context(), *scores_, no_trace_) {}

SequenceScorer::~SequenceScorer() = default;

std::vector<at::Tensor> SequenceScorer::log_probabilities(std::span<const data::MicroBatch> batches) {
  runner_.evaluate(batches);
  if (!runner_.context().is_last_stage()) return {};
  return scores_->take();
}

// Fillers of an evaluation stay fillers, so that every rank of the replica runs the same passes.
std::vector<at::Tensor> SequenceScorer::mismatched_log_probabilities(std::span<const data::MicroBatch> batches) {
  std::vector<data::MicroBatch> others;
  for (const data::MicroBatch& batch : batches) {
    check(batch.mismatched != nullptr, "a micro-batch without mismatched answers");
    others.push_back(*batch.mismatched);
    if (batch.samples == 0) others.back().samples = 0;
  }
  return log_probabilities(others);
}

}  // namespace megalith::train
