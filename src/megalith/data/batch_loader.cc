// Two loaders with one contract: a step's samples are the same on all ranks in number and order, and each rank collates
// only its own. NumberedLoader asks the Sampler and reads just the samples of this rank. StreamLoader must walk over
// the samples of other ranks too; skip() makes that cheap. Since only reading tells where a stream ends, it prepares
// one step ahead, and only then knows whether the step it returns is the last of its epoch.
#include "megalith/data/batch_loader.h"

#include <utility>

#include "megalith/base/error.h"

namespace megalith::data {
namespace {

// Random access: a checkpoint's position is enough to continue, and samples of other ranks are never read.
class NumberedLoader : public BatchLoader {
 public:
  NumberedLoader(std::shared_ptr<const Dataset> dataset, const Sampler& sampler, const Collator& collator,
                 ShapeOfStep shape, LoaderStart start, CollateParts parts)
      : dataset_(std::move(dataset)),
        sampler_(sampler),
        collator_(collator),
        shape_(std::move(shape)),
        parts_(parts),
        at_(start) {
    check(dataset_->size() == sampler_.options().size, "a sampler of {} samples for a dataset of {}",
          sampler_.options().size, dataset_->size());
  }

  std::optional<StepBatch> next() override {
    const BatchShape shape = shape_(at_.consumed_samples);
    const auto step = sampler_.step(at_.position, shape.samples());
    if (!step) return std::nullopt;
    StepBatch result{.after = step->after, .samples = shape.samples(), .ends_epoch = step->ends_epoch};
    std::vector<Sample> samples;
    for (const std::vector<int64_t>& members : deal(step->samples, shape)) {
      samples.clear();
      for (const int64_t index : members) samples.push_back(dataset_->sample(index));
      result.microbatches.push_back(collator_.collate(samples, parts_));
    }
    // Only after everything was read: a failed next() can be repeated.
    at_ = {step->after, at_.consumed_samples + shape.samples()};
    return result;
  }

 private:
  std::shared_ptr<const Dataset> dataset_;
  Sampler sampler_;
  Collator collator_;
  ShapeOfStep shape_;
  CollateParts parts_;
  LoaderStart at_;
};

// Sequential access: continues by skipping what the checkpoint has consumed.
class StreamLoader : public BatchLoader {
 public:
  StreamLoader(OpenStream open, const Collator& collator, ShapeOfStep shape, LoaderStart start, CollateParts parts)
      : open_(std::move(open)), collator_(collator), shape_(std::move(shape)), parts_(parts), at_(start) {
    stream_ = open_(at_.position.epoch);
    // A stream that has become shorter than the checkpoint's position just begins the next epoch.
    for (int64_t i = 0; i < at_.position.consumed; ++i)
      if (!stream_->skip()) break;
  }

  std::optional<StepBatch> next() override {
    StepBatch step = ahead_ ? std::move(*ahead_) : first_step();
    // The lookahead stops at the end of the epoch; the next call then opens the next one.
    ahead_ = try_step(shape_(at_.consumed_samples));
    step.ends_epoch = !ahead_;
    return step;
  }

 private:
  // Returns a step of this epoch or, if that has ended, of the next one.
  StepBatch first_step() {
    const BatchShape shape = shape_(at_.consumed_samples);
    auto step = try_step(shape);
    if (step) return std::move(*step);
    at_.position = {at_.position.epoch + 1, 0};
    stream_ = open_(at_.position.epoch);
    step = try_step(shape);
    check<DataError>(step.has_value(),
                     "an epoch of the data has fewer samples than the {} that a step takes. Lower "
                     "per_device_train_batch_size or gradient_accumulation_steps, use fewer ranks, or give more data; "
                     "the warnings list records that were left out",
                     shape.samples());
    return std::move(*step);
  }

  // Returns std::nullopt if the epoch does not have enough samples left. The dealing is that of deal() (sampler.h).
  std::optional<StepBatch> try_step(const BatchShape& shape) {
    std::vector<std::vector<Sample>> own_samples(static_cast<size_t>(shape.num_microbatches));
    for (int64_t i = 0; i < shape.samples(); ++i) {
      const int64_t chunk = i / shape.micro_batch_size;  // chunks of micro_batch_size samples go to the ranks in turn
      if (chunk % shape.dp_size != shape.dp_rank) {
        if (!stream_->skip()) return std::nullopt;
        continue;
      }
      auto sample = stream_->next();
      if (!sample) return std::nullopt;
      own_samples[static_cast<size_t>(chunk / shape.dp_size)].push_back(std::move(*sample));
    }
    StepBatch result{.samples = shape.samples()};
    for (const std::vector<Sample>& samples : own_samples)
      result.microbatches.push_back(collator_.collate(samples, parts_));
    at_.position.consumed += shape.samples();
    at_.consumed_samples += shape.samples();
    result.after = at_.position;
    return result;
  }

  OpenStream open_;
  Collator collator_;
  ShapeOfStep shape_;
  CollateParts parts_;
  LoaderStart at_;  // the position after ahead_
  std::unique_ptr<SampleStream> stream_;
  std::optional<StepBatch> ahead_;  // the step after the last one returned, if it belongs to the same epoch
};

}  // namespace

std::unique_ptr<BatchLoader> make_batch_loader(std::shared_ptr<const Dataset> dataset, const Sampler& sampler,
                                               const Collator& collator, ShapeOfStep shape, LoaderStart start,
                                               CollateParts parts) {
  return std::make_unique<NumberedLoader>(std::move(dataset), sampler, collator, std::move(shape), start, parts);
}

std::unique_ptr<BatchLoader> make_stream_loader(OpenStream open, const Collator& collator, ShapeOfStep shape,
                                                LoaderStart start, CollateParts parts) {
  return std::make_unique<StreamLoader>(std::move(open), collator, std::move(shape), start, parts);
}

}  // namespace megalith::data
