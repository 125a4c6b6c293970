#include "megalith/train/training_data.h"

#include <utility>

namespace megalith::train {

namespace {

constexpr size_t kStepsAhead = 2;

}  // namespace

TrainingData numbered_data(std::shared_ptr<const data::Dataset> dataset, const data::SamplerOptions& order,
                           const data::Collator& collator) {
  const data::Sampler sampler(order);
  return {.open =
              [dataset = std::move(dataset), sampler, collator](data::ShapeOfStep shape, data::LoaderStart start,
                                                                data::CollateParts parts) {
                return data::make_batch_loader(dataset, sampler, collator, std::move(shape), start, parts);
              },
          .sampler = sampler};
}

TrainingData streamed_data(data::OpenStream open, const data::Collator& collator) {
  return {.open =
              [open = std::move(open), collator](data::ShapeOfStep shape, data::LoaderStart start,
                                                 data::CollateParts parts) {
                return data::make_stream_loader(open, collator, std::move(shape), start, parts);
              },
          .sampler = std::nullopt};
}

EpochReader::EpochReader(std::unique_ptr<data::BatchLoader> loader, int64_t first_epoch, bool stream)
    : loader_(std::move(loader)),
      stream_(stream),
      epoch_(first_epoch),
      steps_([this] { return loader_->next(); }, kStepsAhead) {}

std::optional<data::StepBatch> EpochReader::next() {
  if (epoch_over_ || data_ended_) return std::nullopt;
  std::optional<data::StepBatch> step = held_back_ ? std::exchange(held_back_, std::nullopt) : steps_.next();
  if (!step) {
    data_ended_ = true;
    return std::nullopt;
  }
  // A stream tells of an epoch's end by the first step of the next.
  if (stream_ && step->after.epoch != epoch_) {
    epoch_ = step->after.epoch;
    held_back_ = std::move(step);
    epoch_over_ = true;
    return std::nullopt;
  }
  epoch_over_ = step->ends_epoch;
  return step;
}

}  // namespace megalith::train
