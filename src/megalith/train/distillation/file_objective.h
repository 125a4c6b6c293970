// FileDistillationObjective: training towards a teacher whose likeliest tokens are in files. The data brings them
// (taught_samples.h), so that no second model is held or run:
//
//   const auto files = std::make_shared<const TeacherFiles>(folder);
//   const auto dataset = with_teacher_files(samples, files, how.temperature, how.tail);
//   setup.train_data = numbered_data(dataset, order, collator);
//   setup.objective = std::make_unique<FileDistillationObjective>(how, files->index());
#pragma once

#include "megalith/train/distillation/taught_objective.h"
#include "megalith/train/distillation/teacher_files.h"

namespace megalith::train {

// One thread per rank.
class FileDistillationObjective : public TaughtObjective {
 public:
  // Throws ConfigError for files that do not serve the loss: without the tail of the temperature, or with fewer tokens
  // than the loss is to use (check_teacher_index).
  FileDistillationObjective(const DistillationSettings& how, const TeacherIndex& index);

  std::vector<std::string> extra_keys() const override;

 protected:
  // Throws ConfigError for files of another vocabulary.
  SliceTerms terms_of(const data::MicroBatch& batch, const model::GptModel& chunk, int microbatch) const override;

 private:
  const int64_t vocab_size_;
  const bool has_tail_;
};

// Throws ConfigError unless files with this index serve a loss: names what the files hold, and what to do.
void check_teacher_index(const TeacherIndex& index, const DistillationSettings& how);

}  // namespace megalith::train
