// DistillationObjective: training towards the distributions of a teacher (TRL's GKDTrainer on given texts). All it
// takes is a Trainer with this objective:
//
//   setup.objective = std::make_unique<DistillationObjective>(how, std::make_unique<TeacherModel>(teacher, step));
//   Trainer(models, settings, std::move(setup)).train();
//
// Before the micro-batches of a step run, the teacher runs over them. The head's loss is then that of
// distillation_loss.h, over the labelled tokens; projections and loss of both models work on slices of kSliceTokens
// tokens. Log lines and evaluations also report kd_loss and lm_loss, as means over the labelled tokens. Losses of
// multi-token prediction are trained as ever: they do not look at the teacher.
#pragma once

#include <memory>

#include "megalith/train/distillation/teacher_model.h"
#include "megalith/train/objectives/objective.h"
#include "megalith/train/settings/distillation_settings.h"

namespace megalith::train {

// One thread per rank.
class DistillationObjective : public Objective {
 public:
  static constexpr int64_t kSliceTokens = 512;

  DistillationObjective(const DistillationSettings& how, std::unique_ptr<TeacherModel> teacher);

  std::vector<std::string> metrics_keys(Phase phase) const override;
  bool wants_correct(Phase /*phase*/) const override { return false; }
  bool has_perplexity() const override { return false; }
  bool sums_token_losses() const override { return true; }
  // The teacher runs on the host's command, before the passes.
  bool recordable() const override { return false; }
  // Runs the teacher.
  void begin(std::span<const data::MicroBatch> batches, Phase phase) override;
  // Throws ConfigError for a model whose head does not predict tokens, and InternalError for a teacher with another
  // vocabulary.
  MicrobatchLoss run_head(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                          int microbatch, Phase phase) const override;

 private:
  const DistillationSettings how_;
  const std::unique_ptr<TeacherModel> teacher_;
};

}  // namespace megalith::train
