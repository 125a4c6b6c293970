// DistributedDataParallel: gradients of a model chunk gathered in flat buffers and reduced over its replicas, while
// backward still runs when asked.
//
// A step, for each chunk:
//   zero_grad
//   every micro-batch but the last: { NoSync scope(ddp); forward; backward }     gradients accumulate
//   the last: forward; backward                     with overlap_grad_reduce buckets leave as they become complete
//   finish_grad_sync                                the rest leaves; waits for all (finalize_gradients calls it)
//   check_gradients                                 the NaN checks that were left for later, as they are on CUDA
//   optimizer step (optimizer.h)                    on what this rank owns
//   start_param_gather; then, before a part of the model runs: wait_for_params(its parameters)
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "megalith/optim/param_buffer.h"
#include "megalith/parallel/parallel_context.h"

namespace torch::autograd {
struct Node;
}

namespace megalith::optim {

// How large the buckets of a buffer are.
struct BucketSize {
  enum class Rule {
    kFitting,   // as suits the place: max(40 000 000, 1 000 000 · replicas) elements, on CPU 1 500 000
    kElements,  // a bucket is closed once it has `value` elements
    kCount,     // the buffer is cut into about `value` buckets
  };
  Rule rule = Rule::kFitting;
  int64_t value = 0;  // without meaning for kFitting

  static BucketSize elements(int64_t value) { return {Rule::kElements, value}; }
  static BucketSize count(int64_t value) { return {Rule::kCount, value}; }
  bool operator==(const BucketSize&) const = default;
};

// run::ddp_settings makes it from options.
struct DdpSettings {
  bool use_distributed_optimizer = false;  // ranks own shards of the buffers (ZeRO-1)
  bool overlap_grad_reduce = false;        // a bucket's reduction starts when its last gradient is there
  bool average_in_collective = false;      // divide in the collective in place of before it
  bool per_token_loss = false;             // only sum: gradients are divided by the number of tokens later
  bool check_for_nan = true;               // gradients are measured, and the GradientCheck is told
  std::optional<bool> checks_later;        // by check_gradients; empty: on CUDA, where a check waits for the device
  bool pad_buckets_for_bandwidth = false;  // bucket ends at multiples of 65536 elements
  BucketSize bucket_size;
  bool bucketing = true;                   // false: one bucket a buffer (chunks after the first)
  at::ScalarType grad_dtype = at::kFloat;  // of the buffers; bf16: half the traffic and less exact sums

  // Throws ConfigError with every problem.
  void validate() const;
};

// The settings of a chunk: `chunk` is its number on this rank, `first_stage` whether the rank is of the first pipeline
// stage. As in the reference, only the first chunk of the first stage is cut into buckets, and only to overlap.
DdpSettings settings_of_chunk(DdpSettings settings, bool first_stage, int chunk);

// One thread a rank. The parameters and the context outlive it. Parameters that need no gradient when it is made are
// not part of it.
class DistributedDataParallel {
 public:
  DistributedDataParallel(const std::vector<nn::Parameter*>& parameters, const DdpSettings& settings,
                          const parallel::ParallelContext& context);
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  const DdpSettings& settings() const { return settings_; }
  // Dense parameters and experts apart, one buffer for each dtype.
  const std::vector<std::unique_ptr<ParamBuffer>>& buffers() const { return buffers_; }

  void zero_grad();

  // From now on `check` decides about gradients that are not finite; require_finite does at first.
  void set_gradient_check(const GradientCheck& check);

  // While one lives, backward accumulates only.
  class NoSync {
   public:
    explicit NoSync(DistributedDataParallel& ddp) : ddp_(ddp), before_(ddp.sync_) { ddp_.sync_ = false; }
    ~NoSync() { ddp_.sync_ = before_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DistributedDataParallel& ddp_;
    const bool before_;
  };
  // The same by hand, for schedules.
  void set_sync(bool on) { sync_ = on; }

  // Starts the reduction of every bucket that has not started, complete or not: all gradients of this step are there.
  void start_grad_sync();
  // That, and waits for all of them.
  void finish_grad_sync();
  // Buckets whose reduction has been started in this step; how many of those are done already.
  int buckets_started() const;
  int buckets_reduced() const;
  // See ParamBuffer::check_gradients; after finish_grad_sync.
  void check_gradients() const;
  // Multiplies what this rank owns of the reduced gradients.
  void scale_gradients(double factor);

  // After the optimizer's step: collects the parameters from their owners, bucket by bucket in the order of the forward
  // pass, in the background. Nothing without the distributed optimizer.
  void start_param_gather();
  void finish_param_gather();
  // Returns when these parameters are there.
  void wait_for_params(std::span<nn::Parameter* const> parameters);

 private:
  // Autograd calls the accumulation node of a parameter once in a backward pass, when all its uses are through; a
  // recomputed region is a pass of its own, so one backward of the model may report a parameter several times. How
  // often is recorded in the first synchronised backward; from the second on a bucket leaves when all have reported
  // that often.
  struct Place {
    size_t buffer = 0;
    int bucket = 0;
    int reports = 0;                                     // in this step's synchronised backward
    int expected = 0;                                    // as recorded
    std::shared_ptr<torch::autograd::Node> accumulator;  // autograd itself holds it only weakly
    uintptr_t hook = 0;
  };
  // Of a buffer in this step.
  struct Progress {
    std::vector<int> missing;  // by bucket: parameters that have not reported as often as expected
    int started = 0;           // buckets [0, started) have been started: always in this order, the same on every rank
  };

  void add_buffer(std::vector<nn::Parameter*> parameters, bool expert, const parallel::ParallelContext& context);
  void watch(nn::Parameter& parameter);
  void on_gradient(nn::Parameter& parameter);
  void report(const nn::Parameter& parameter);  // its gradient of this backward pass is complete
  void start_ready_buckets(size_t buffer);

  DdpSettings settings_;
  bool sync_ = true;
  bool recorded_ = false;  // how often each parameter reports in a synchronised backward is known
  std::vector<std::unique_ptr<ParamBuffer>> buffers_;
  std::vector<Progress> progress_;  // by buffer
  std::unordered_map<const nn::Parameter*, Place> places_;
};

}  // namespace megalith::optim
