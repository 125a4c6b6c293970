#include "megalith/train/sample_dealer.h"

#include <algorithm>

#include "megalith/base/error.h"

namespace megalith::train {

SampleDealer::SampleDealer(const EvalData& data, int64_t micro_batch_size, const parallel::ParallelContext& context)
    : data_(data),
      size_(micro_batch_size),
      dp_(context.grid().dp()),
      dp_rank_(context.place().dp_rank),
      parts_(context.is_first_stage() || context.is_last_stage() ? data::CollateParts::kAll
                                                                 : data::CollateParts::kLayoutOnly),
      samples_(std::min(data.dataset->size(), data.max_samples.value_or(data.dataset->size()))) {
  check<DataError>(samples_ > 0, "the evaluation data{} has no samples",
                   data.name.empty() ? "" : fmt::format(" \"{}\"", data.name));
}

int64_t SampleDealer::microbatches() const {
  const int64_t all = (samples_ + size_ - 1) / size_;
  return (all + dp_ - 1) / dp_;
}

data::MicroBatch SampleDealer::microbatch(int64_t m) const {
  const int64_t first = first_sample(m);
  std::vector<data::Sample> members;
  for (int64_t i = first; i < std::min(first + size_, samples_); ++i) members.push_back(data_.dataset->sample(i));
  if (!members.empty()) return data_.collator.collate(members, parts_);
  members.push_back(data_.dataset->sample(0));
  data::MicroBatch filler = data_.collator.collate(members, parts_);
  filler.samples = filler.real_tokens = filler.loss_tokens = 0;
  return filler;
}

}  // namespace megalith::train
