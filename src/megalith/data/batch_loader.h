// BatchLoader: delivers the micro-batches of each step to one data-parallel rank.
//
//   const auto loader = make_batch_loader(dataset, sampler, collator, shape, start);
//   while (const auto step = loader->next()) train(step->microbatches);   // step->after goes into checkpoints
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "megalith/data/collator.h"
#include "megalith/data/dataset.h"
#include "megalith/data/sampler.h"

namespace megalith::data {

// The data of one training step.
struct StepBatch {
  std::vector<MicroBatch> microbatches;  // this rank's own, in the order of the schedule
  SamplerPosition after;                 // start of the next step; checkpoints store it
  int64_t samples = 0;                   // consumed by all ranks in this step
  bool ends_epoch = false;               // the next step belongs to another epoch, or there is none
};

// Returns the shape of the step that begins after the run has consumed `consumed_samples`: a constant, or a batch size
// that grows (layout::MicrobatchCalculator). The same on all ranks.
using ShapeOfStep = std::function<BatchShape(int64_t consumed_samples)>;

// The point at which a loader begins. Both values come from a checkpoint.
struct LoaderStart {
  SamplerPosition position;
  int64_t consumed_samples = 0;  // in the whole run, over all epochs
};

// Not thread-safe, but next() may be the produce function of a Prefetcher. All ranks of a replica get the same
// micro-batches (or their layout), and all ranks the same number of steps, so that collectives inside the step stay
// matched.
class BatchLoader {
 public:
  virtual ~BatchLoader() = default;
  // Returns the next step; std::nullopt at the end of the data.
  virtual std::optional<StepBatch> next() = 0;
};

// Returns a loader over numbered samples, in the order of `sampler`. `parts` leaves out what a middle pipeline stage
// does not need. Throws InternalError if the sampler was made for another size of dataset.
std::unique_ptr<BatchLoader> make_batch_loader(std::shared_ptr<const Dataset> dataset, const Sampler& sampler,
                                               const Collator& collator, ShapeOfStep shape, LoaderStart start = {},
                                               CollateParts parts = CollateParts::kAll);

// A sequence of samples without random access, for `streaming`. Not thread-safe. skip() and next() must advance alike,
// or ranks would read different samples.
class SampleStream {
 public:
  virtual ~SampleStream() = default;
  // Returns the next sample; std::nullopt at the end.
  virtual std::optional<Sample> next() = 0;
  // Advances like next(), but avoids making the sample where it can. Returns false at the end.
  virtual bool skip() = 0;
};

// Opens the stream of an epoch at its first sample. Called once per epoch; equal epochs must give equal streams, on
// every rank and in every run.
using OpenStream = std::function<std::unique_ptr<SampleStream>(int64_t epoch)>;

// Returns a loader over a stream. All ranks read the same stream and keep their own samples. Samples at the end of an
// epoch that do not fill a step are dropped. To know where an epoch ends, the loader reads one step ahead. Throws a
// DataError if an epoch has too few samples for a single step.
std::unique_ptr<BatchLoader> make_stream_loader(OpenStream open, const Collator& collator, ShapeOfStep shape,
                                                LoaderStart start = {}, CollateParts parts = CollateParts::kAll);

}  // namespace megalith::data
