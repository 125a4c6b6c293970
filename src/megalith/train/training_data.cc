// Loading runs ahead of training on a thread of its own (io::Prefetcher): while the device computes a step, the next
// two are read and collated. The loader belongs to that thread; the trainer's thread only takes finished steps.
#include "megalith/train/training_data.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"

namespace megalith::train {

namespace {

// Two steps hide the time of collating one without holding much memory.
constexpr size_t kStepsAhead = 2;

class PinnedMediaLoader : public data::BatchLoader {
 public:
  explicit PinnedMediaLoader(std::unique_ptr<data::BatchLoader> loader) : loader_(std::move(loader)) {}
  std::optional<data::StepBatch> next() override {
    std::optional<data::StepBatch> step = loader_->next();
    if (!step) return step;
    for (data::MicroBatch& batch : step->microbatches)
      for (at::Tensor* media : {&batch.pixels, &batch.audio_features})
        if (media->defined()) *media = media->pin_memory();
    return step;
  }

 private:
  const std::unique_ptr<data::BatchLoader> loader_;
};

// Fills in the lengths that an order by length needs.
data::SamplerOptions with_lengths(data::SamplerOptions order, const data::Dataset& dataset) {
  if (!order.by_length || order.lengths) return order;
  std::vector<int32_t> lengths(static_cast<size_t>(dataset.size()));
  for (int64_t i = 0; i < dataset.size(); ++i)
    lengths[static_cast<size_t>(i)] = static_cast<int32_t>(dataset.tokens(i));
  order.lengths = std::make_shared<const std::vector<int32_t>>(std::move(lengths));
  return order;
}

}  // namespace

TrainingData numbered_data(std::shared_ptr<const data::Dataset> dataset, const data::SamplerOptions& order,
                           const data::Collator& collator) {
  const data::Sampler sampler(with_lengths(order, *dataset));
  return {.open =
              [dataset, sampler, collator](data::ShapeOfStep shape, data::LoaderStart start, data::CollateParts parts) {
                return data::make_batch_loader(dataset, sampler, collator, std::move(shape), start, parts);
              },
          .sampler = sampler,
          .dataset = std::move(dataset),
          .collator = collator};
}

TrainingData streamed_data(data::OpenStream open, const data::Collator& collator) {
  return {.open =
              [open = std::move(open), collator](data::ShapeOfStep shape, data::LoaderStart start,
                                                 data::CollateParts parts) {
                return data::make_stream_loader(open, collator, std::move(shape), start, parts);
              },
          .sampler = std::nullopt};
}

std::unique_ptr<data::BatchLoader> with_pinned_media(std::unique_ptr<data::BatchLoader> loader) {
  return std::make_unique<PinnedMediaLoader>(std::move(loader));
}

void check_first_batch(const data::Dataset& dataset, const data::Collator& collator, int64_t micro_batch_size,
                       std::span<const std::string> extra_keys) {
  std::vector<data::Sample> samples;
  for (int64_t i = 0; i < std::min(micro_batch_size, dataset.size()); ++i) samples.push_back(dataset.sample(i));
  if (!samples.empty()) collator.collate(samples).require_extras(extra_keys);
}

EpochReader::EpochReader(std::unique_ptr<data::BatchLoader> loader, bool stream)
    : loader_(std::move(loader)), stream_(stream), steps_([this] { return loader_->next(); }, kStepsAhead) {}

// The first step of the epoch is read here, and next() returns it: only by reading it is it known whether there is one.
bool EpochReader::begin_epoch() {
  if (!held_back_) held_back_ = steps_.next();
  epoch_over_ = !held_back_;
  if (held_back_) epoch_ = held_back_->after.epoch;
  return held_back_.has_value();
}

std::optional<data::StepBatch> EpochReader::next() {
  if (epoch_over_) return std::nullopt;
  std::optional<data::StepBatch> step = held_back_ ? std::exchange(held_back_, std::nullopt) : steps_.next();
  // A stream reveals the end of an epoch only by the first step of the next one, which is held back.
  const bool of_next_epoch = step && stream_ && step->after.epoch != epoch_;
  epoch_over_ = !step || of_next_epoch || step->ends_epoch;
  if (!of_next_epoch) return step;
  held_back_ = std::move(step);
  return std::nullopt;
}

EvalReader::EvalReader(const EvalData& data, int64_t micro_batch_size, const parallel::ParallelContext& context)
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

// ceil(ceil(samples / size) / dp).
int64_t EvalReader::microbatches() const {
  const int64_t all = (samples_ + size_ - 1) / size_;
  return (all + dp_ - 1) / dp_;
}

data::MicroBatch EvalReader::microbatch(int64_t m) const {
  const int64_t first = first_sample(m);
  std::vector<data::Sample> members;
  for (int64_t i = first; i < std::min(first + size_, samples_); ++i) members.push_back(data_.dataset->sample(i));
  if (!members.empty()) return data_.collator.collate(members, parts_);
  // A filler is a copy of sample 0, so that its shapes are valid, with all counts set to 0.
  members.push_back(data_.dataset->sample(0));
  data::MicroBatch filler = data_.collator.collate(members, parts_);
  filler.samples = filler.real_tokens = filler.loss_tokens = 0;
  return filler;
}

}  // namespace megalith::train
