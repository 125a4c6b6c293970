// The micro-batches of a step, for one data-parallel rank.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "megalith/data/collator.h"
#include "megalith/data/dataset.h"
#include "megalith/data/sampler.h"

namespace megalith::data {

// What one step of training takes.
struct StepBatch {
  std::vector<MicroBatch> microbatches;  // of this rank
  SamplerPosition after;                 // where the next step begins: what a checkpoint keeps
  int64_t samples = 0;                   // consumed by all ranks in this step
  bool ends_epoch = false;               // the next step is of another epoch, or there is none
};

// The shape of the step that begins when `consumed_samples` of the run are consumed: a constant, or a batch size that
// grows (layout::MicrobatchCalculator). The same on all ranks.
using ShapeOfStep = std::function<BatchShape(int64_t consumed_samples)>;

// Where a loader begins. Both numbers come from a checkpoint.
struct LoaderStart {
  SamplerPosition position;
  int64_t consumed_samples = 0;  // of the run, over all epochs
};

class BatchLoader {
 public:
  virtual ~BatchLoader() = default;
  // The next step; nothing at the end of the data. One thread; may be the produce function of a Prefetcher.
  virtual std::optional<StepBatch> next() = 0;
};

// Samples by number.
std::unique_ptr<BatchLoader> make_batch_loader(std::shared_ptr<const Dataset> dataset, const Sampler& sampler,
                                               const Collator& collator, ShapeOfStep shape, LoaderStart start = {},
                                               CollateParts parts = CollateParts::kAll);

// Samples that come one after another and have no numbers: `streaming`. One thread.
class SampleStream {
 public:
  virtual ~SampleStream() = default;
  // Nothing at the end.
  virtual std::optional<Sample> next() = 0;
  // The same as next(), without the work of making the sample where that can be avoided. False at the end.
  virtual bool skip() = 0;
};

// The stream of an epoch, from its first sample.
using OpenStream = std::function<std::unique_ptr<SampleStream>(int64_t epoch)>;

// All ranks read the same stream and keep their own samples of it. An epoch's samples that do not fill a step are left
// out. To know where an epoch ends, the loader is always one step ahead of what it has given. Throws DataError for a
// stream without enough samples for a step.
std::unique_ptr<BatchLoader> make_stream_loader(OpenStream open, const Collator& collator, ShapeOfStep shape,
                                                LoaderStart start = {}, CollateParts parts = CollateParts::kAll);

}  // namespace megalith::data
