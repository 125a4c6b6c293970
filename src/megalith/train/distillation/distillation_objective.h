// DistillationObjective: training towards the distributions of a teacher (TRL's GKDTrainer on given texts). All it
// takes is a Trainer with this objective:
//
//   setup.objective = std::make_unique<DistillationObjective>(how, std::make_unique<TeacherModel>(teacher, step));
//   Trainer(models, settings, std::move(setup)).train();
//
// Before the micro-batches of a step run, the teacher runs over them; the projections of both models then work on the
// same slices of tokens (taught_objective.h).
#pragma once

#include <memory>

#include "megalith/train/distillation/taught_objective.h"
#include "megalith/train/distillation/teacher_model.h"

namespace megalith::train {

// One thread per rank.
class DistillationObjective : public TaughtObjective {
 public:
  DistillationObjective(const DistillationSettings& how, std::unique_ptr<TeacherModel> teacher);

  // Runs the teacher, on the host's command, before the passes.
  void begin(std::span<const data::MicroBatch> batches, Phase phase) override;

 protected:
  // Throws InternalError for a teacher with another vocabulary.
  SliceTerms terms_of(const data::MicroBatch& batch, const model::GptModel& chunk, int microbatch) const override;

 private:
  const std::unique_ptr<TeacherModel> teacher_;
};

}  // namespace megalith::train
