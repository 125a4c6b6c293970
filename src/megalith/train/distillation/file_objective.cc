#include "megalith/train/distillation/file_objective.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "megalith/base/error.h"
#include "megalith/train/distillation/kept_distillation_loss.h"
#include "megalith/train/distillation/taught_samples.h"

namespace megalith::train {

void check_teacher_index(const TeacherIndex& index, const DistillationSettings& how) {
  check<ConfigError>(!how.classes || *how.classes <= index.classes,
                     "kd_top_k is {}, but the teacher's files keep the {} likeliest tokens; use a smaller number, or"
                     " leave it out to use all of them",
                     how.classes.value_or(0), index.classes);
  check<ConfigError>(how.tail || how.classes.value_or(index.classes) > 1,
                     "kd_tail is false and a single token is compared, whose probability alone is always 1: the loss"
                     " would be 0. Keep kd_tail, or use more tokens");
  check<ConfigError>(!how.tail || index.is_whole() || index.tail_of(how.temperature),
                     "kd_temperature is {}, but the teacher's files hold the probability of all other tokens at"
                     " temperature {} only; use that, write them again with kd_temperature {}, or set kd_tail false",
                     how.temperature, fmt::join(index.temperatures, " and "), how.temperature);
}

FileDistillationObjective::FileDistillationObjective(const DistillationSettings& how, const TeacherIndex& index)
    : TaughtObjective(how), vocab_size_(index.vocab_size), has_tail_(how.tail && !index.is_whole()) {
  check_teacher_index(index, how);
}

std::vector<std::string> FileDistillationObjective::extra_keys() const {
  std::vector<std::string> keys{kTeacherIds, kTeacherLogProbs};
  if (has_tail_) keys.emplace_back(kTeacherLogTail);
  return keys;
}

TaughtObjective::SliceTerms FileDistillationObjective::terms_of(const data::MicroBatch& batch,
                                                                const model::GptModel& chunk,
                                                                int /*microbatch*/) const {
  check<ConfigError>(chunk.vocab_range().total == vocab_size_,
                     "the teacher's files are for a vocabulary of {} ids, and the model that is trained has {}",
                     vocab_size_, chunk.vocab_range().total);
  const at::Device device = chunk.options().device;
  KeptClasses all{.ids = batch.extra(kTeacherIds, device),
                  .log_probs = batch.extra(kTeacherLogProbs, device),
                  .log_tail = has_tail_ ? batch.extra(kTeacherLogTail, device) : at::Tensor()};
  return [this, &chunk, all](const at::Tensor& logits, const at::Tensor& labels, int64_t first,
                             std::optional<double> grad) {
    const int64_t count = logits.size(0);
    const KeptClasses rows{.ids = all.ids.narrow(0, first, count),
                           .log_probs = all.log_probs.narrow(0, first, count),
                           .log_tail = has_tail_ ? all.log_tail.narrow(0, first, count) : at::Tensor()};
    return kept_distillation_terms_(logits, rows, labels, chunk.vocab_range(), chunk.tensor_parallel().group,
                                    chunk.options().loss, how(), grad);
  };
}

}  // namespace megalith::train
