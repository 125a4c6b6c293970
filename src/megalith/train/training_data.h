// Where a trainer's micro-batches come from: steps of training, epoch by epoch, and samples to evaluate.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "megalith/data/batch_loader.h"
#include "megalith/io/prefetch.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::train {

// Makes loaders. The same on all ranks.
struct TrainingData {
  using Open =
      std::function<std::unique_ptr<data::BatchLoader>(data::ShapeOfStep, data::LoaderStart, data::CollateParts)>;
  Open open;
  std::optional<data::Sampler> sampler;            // nothing: a stream, whose length is not known
  std::shared_ptr<const data::Dataset> dataset{};  // of numbered data
  std::optional<data::Collator> collator{};        // likewise
};

// Samples by number, in the sampler's order.
TrainingData numbered_data(std::shared_ptr<const data::Dataset> dataset, const data::SamplerOptions& order,
                           const data::Collator& collator);
// Samples that come one after another (`streaming`).
TrainingData streamed_data(data::OpenStream open, const data::Collator& collator);

// Data to evaluate on, whole and in its own order.
struct EvalData {
  std::shared_ptr<const data::Dataset> dataset;
  data::Collator collator;
  std::string name{};                    // of several: metrics are called eval_<name>_loss
  std::optional<int64_t> max_samples{};  // the first so many only
};

// Makes the first micro-batch of up to `micro_batch_size` samples, as a trial: what a collator of one's own, or fields
// of samples, do wrong every time ends a run on every rank before any work is spent. Throws DataError.
void check_first_batch(const data::Dataset& dataset, const data::Collator& collator, int64_t micro_batch_size,
                       std::span<const std::string> extra_keys);

// The steps of a loader, cut into epochs; the next ones are made on a thread of its own.
class EpochReader {
 public:
  EpochReader(std::unique_ptr<data::BatchLoader> loader, bool stream);

  // Goes on to the next epoch, from wherever the current one stands: the data is not wound forward. Waits for its first
  // step; false when there is none: the data has ended.
  bool begin_epoch();
  // The next step of the current epoch; nothing at its end.
  std::optional<data::StepBatch> next();

 private:
  const std::unique_ptr<data::BatchLoader> loader_;  // the thread's
  const bool stream_;
  int64_t epoch_ = 0;  // the current one; streams only
  bool epoch_over_ = true;
  std::optional<data::StepBatch> held_back_;  // the first step of the next epoch
  io::Prefetcher<data::StepBatch> steps_;     // last: its thread uses the loader
};

// Reads every sample of EvalData once, over the data-parallel ranks: micro-batch k has samples [k·size, (k+1)·size) and
// belongs to rank k mod dp. Where a rank has fewer than another, or a schedule needs more, it gets fillers, which count
// for nothing. `data` and `context` outlive it.
class EvalReader {
 public:
  // Throws DataError when there are no samples.
  EvalReader(const EvalData& data, int64_t micro_batch_size, const parallel::ParallelContext& context);

  int64_t samples() const { return samples_; }  // over all ranks
  // Micro-batches of the rank that has the most.
  int64_t microbatches() const;
  // The number of the first sample in this rank's m-th micro-batch; past the end of the data for a filler.
  int64_t first_sample(int64_t m) const { return (m * dp_ + dp_rank_) * size_; }
  // This rank's m-th micro-batch; past the end of the data a filler, without samples, tokens or labels that count.
  data::MicroBatch microbatch(int64_t m) const;

 private:
  const EvalData& data_;
  const int64_t size_, dp_, dp_rank_;
  const data::CollateParts parts_;
  const int64_t samples_;
};

}  // namespace megalith::train
