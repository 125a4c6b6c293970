// A step in three parts: begin() runs the teacher over all micro-batches, the pipeline runs the student, and on the
// last stage the loss projects both models slice by slice. The teacher runs first because both models use the same
// pipeline, one schedule at a time.
#include "megalith/train/distillation/distillation_objective.h"

#include <ATen/ATen.h>

#include <utility>

#include "megalith/base/error.h"

namespace megalith::train {

namespace {

void check_same_vocabulary(const ops::VocabRange& mine, const ops::VocabRange& teacher) {
  check(mine.begin == teacher.begin && mine.end == teacher.end && mine.total == teacher.total,
        "the teacher has ids {} to {} of {} on this rank, and the student {} to {} of {}", teacher.begin, teacher.end,
        teacher.total, mine.begin, mine.end, mine.total);
}

}  // namespace

DistillationObjective::DistillationObjective(const DistillationSettings& how, std::unique_ptr<TeacherModel> teacher)
    : TaughtObjective(how), teacher_(std::move(teacher)) {}

void DistillationObjective::begin(std::span<const data::MicroBatch> batches, Phase /*phase*/) {
  teacher_->run(batches);
}

TaughtObjective::SliceTerms DistillationObjective::terms_of(const data::MicroBatch& /*batch*/,
                                                            const model::GptModel& chunk, int microbatch) const {
  check_same_vocabulary(chunk.vocab_range(), teacher_->vocab_range());
  return [this, &chunk, taught = teacher_->hidden(microbatch)](const at::Tensor& logits, const at::Tensor& labels,
                                                               int64_t first, std::optional<double> grad) {
    const at::Tensor rows = taught.narrow(0, first, logits.size(0));  // [c, h of the teacher]
    return distillation_terms_({logits, teacher_->logits(rows)}, labels, chunk.vocab_range(),
                               chunk.tensor_parallel().group, chunk.options().loss, how(), grad);
  };
}

}  // namespace megalith::train
