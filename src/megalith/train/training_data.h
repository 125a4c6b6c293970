// The sources of a trainer's micro-batches: training steps, epoch by epoch, and samples to evaluate.
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

// Opens loaders of training data. The same on all ranks. A value that can be opened repeatedly, at any position.
struct TrainingData {
  using Open =
      std::function<std::unique_ptr<data::BatchLoader>(data::ShapeOfStep, data::LoaderStart, data::CollateParts)>;
  Open open;
  std::optional<data::Sampler> sampler;            // std::nullopt for a stream, whose length is unknown
  std::shared_ptr<const data::Dataset> dataset{};  // set for numbered data only
  std::optional<data::Collator> collator{};        // likewise
};

// Returns data whose samples are read by number, in the sampler's order.
TrainingData numbered_data(std::shared_ptr<const data::Dataset> dataset, const data::SamplerOptions& order,
                           const data::Collator& collator);
// Returns data whose samples come one after another (`streaming`).
TrainingData streamed_data(data::OpenStream open, const data::Collator& collator);

// Returns `loader` with pixels and sounds in pinned memory, from where they are copied to a CUDA device while the host
// continues. Pinning copies them once: on the thread that calls next(), which loads ahead of training.
std::unique_ptr<data::BatchLoader> with_pinned_media(std::unique_ptr<data::BatchLoader> loader);

// A data set to evaluate on, whole and in its own order.
struct EvalData {
  std::shared_ptr<const data::Dataset> dataset;
  data::Collator collator;
  std::string name{};                    // tells several sets apart: metrics are called eval_<name>_loss
  std::optional<int64_t> max_samples{};  // evaluate only the first so many
};

// Collates the first micro-batch of up to `micro_batch_size` samples as a trial, so that mistakes which a custom
// collator or the samples' fields would make every time end the run on every rank before any work is spent. Throws
// DataError.
void check_first_batch(const data::Dataset& dataset, const data::Collator& collator, int64_t micro_batch_size,
                       std::span<const std::string> extra_keys);

// Cuts the steps of a loader into epochs. The next steps are loaded ahead of time on its own thread.
class EpochReader {
 public:
  // Starts to load at once. `stream` says that only the next step tells where an epoch ends.
  EpochReader(std::unique_ptr<data::BatchLoader> loader, bool stream);

  // Begins an epoch at the current position in the data: after an epoch that was stopped early, its rest is not
  // skipped. Waits for the first step; returns false when the data has ended.
  bool begin_epoch();
  // Returns the next step of the current epoch, or std::nullopt at its end.
  std::optional<data::StepBatch> next();

 private:
  const std::unique_ptr<data::BatchLoader> loader_;  // used by the thread of steps_ only
  const bool stream_;
  int64_t epoch_ = 0;  // the current epoch; streams only
  bool epoch_over_ = true;
  std::optional<data::StepBatch> held_back_;  // the first step of the next epoch
  io::Prefetcher<data::StepBatch> steps_;     // declared last: its thread uses the loader
};

// Reads every sample of EvalData once, spread over the data-parallel ranks: micro-batch k has samples [k·size,
// (k+1)·size) and belongs to rank k mod dp. A rank with fewer micro-batches than another, or than a schedule needs,
// gets fillers of weight 0. `data` and `context` outlive the reader. Nothing is read ahead.
class EvalReader {
 public:
  // Throws DataError when there are no samples.
  EvalReader(const EvalData& data, int64_t micro_batch_size, const parallel::ParallelContext& context);

  int64_t samples() const { return samples_; }  // over all ranks
  // Returns the number of micro-batches of the rank that has the most.
  int64_t microbatches() const;
  // Returns the number of the first sample in this rank's m-th micro-batch; it is past the end of the data for a
  // filler.
  int64_t first_sample(int64_t m) const { return (m * dp_ + dp_rank_) * size_; }
  // Returns this rank's m-th micro-batch: past the end of the data a filler, without samples, tokens or labels that
  // count.
  data::MicroBatch microbatch(int64_t m) const;

 private:
  const EvalData& data_;
  const int64_t size_, dp_, dp_rank_;
  const data::CollateParts parts_;
  const int64_t samples_;
};

}  // namespace megalith::train
