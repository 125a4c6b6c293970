// TaughtObjective: what training towards a teacher shares, wherever the teacher's distributions come from: a model
// beside the student (DistillationObjective) or files (FileDistillationObjective).
//
// The head's loss is that of distillation_loss.h, over the labelled tokens; the student's projection and the loss work
// on slices of kSliceTokens tokens. Log lines and evaluations also report kd_loss and lm_loss, as means over the
// labelled tokens. Losses of multi-token prediction are trained as ever: they do not look at the teacher.
#pragma once

#include <functional>

#include "megalith/train/distillation/distillation_loss.h"
#include "megalith/train/objectives/objective.h"
#include "megalith/train/settings/distillation_settings.h"

namespace megalith::train {

// One thread per rank.
class TaughtObjective : public Objective {
 public:
  static constexpr int64_t kSliceTokens = 512;

  std::vector<std::string> metrics_keys(Phase phase) const override;
  bool wants_correct(Phase /*phase*/) const override { return false; }
  bool has_perplexity() const override { return false; }
  bool sums_token_losses() const override { return true; }
  // Forward already computes gradients, slice by slice, with sums that are kept on the host's command.
  bool recordable() const override { return false; }
  // Throws ConfigError for a model whose head does not predict tokens.
  MicrobatchLoss run_head(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                          int microbatch, Phase phase) const override;

 protected:
  explicit TaughtObjective(const DistillationSettings& how) : how_(how) {}

  // Computes the terms of the tokens first … first + c - 1 of a micro-batch from their logits [c, v/tp] and labels [c],
  // as distillation_terms_ does.
  using SliceTerms = std::function<DistillationTerms(const at::Tensor& logits, const at::Tensor& labels, int64_t first,
                                                     std::optional<double> grad)>;
  // Returns the function for a micro-batch, before the student's head runs. Collective over tp.
  virtual SliceTerms terms_of(const data::MicroBatch& batch, const model::GptModel& chunk, int microbatch) const = 0;

  const DistillationSettings& how() const { return how_; }

 private:
  const DistillationSettings how_;
};

}  // namespace megalith::train
