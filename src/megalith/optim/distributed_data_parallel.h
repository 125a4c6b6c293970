// DistributedDataParallel: collects the gradients of a model chunk in flat buffers and reduces them over its replicas,
// optionally while backward is still running.
//
// One step, for each chunk:
//   zero_grad
//   every micro-batch but the last: { NoSync scope(ddp); forward; backward }     gradients accumulate
//   the last: forward; backward      with overlap_grad_reduce each bucket is reduced as soon as it is complete
//   finish_grad_sync                 reduces the rest and waits for all buckets (finalize_gradients calls it)
//   check_gradients                  runs the deferred NaN checks (the default on CUDA)
//   optimizer step (optimizer.h)     updates the elements this rank owns
//   start_param_gather; then, before a part of the model runs: wait_for_params(its parameters)
#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
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
  // The kinds of sizes.
  enum class Rule {
    kFitting,   // chosen by device: max(40 000 000, 1 000 000 · replicas) elements on CUDA, 1 500 000 on the CPU
    kElements,  // a bucket is closed once it has `value` elements
    kCount,     // the buffer is cut into about `value` buckets
  };
  Rule rule = Rule::kFitting;
  int64_t value = 0;  // unused by kFitting

  // Make the sizes that ddp_bucket_size and ddp_num_buckets name.
  static BucketSize elements(int64_t value) { return {Rule::kElements, value}; }
  static BucketSize count(int64_t value) { return {Rule::kCount, value}; }
  bool operator==(const BucketSize&) const = default;
};

// Settings of DistributedDataParallel. run::ddp_settings makes them from the options.
struct DdpSettings {
  bool use_distributed_optimizer = false;  // ranks own shards of the buffers (ZeRO-1)
  bool overlap_grad_reduce = false;        // reduce a bucket as soon as its last gradient is complete
  bool average_in_collective = false;      // divide inside the collective instead of before it
  bool per_token_loss = false;             // only sum: gradients are divided by the number of tokens later
  bool check_for_nan = true;               // check gradients for NaN and infinity and notify the GradientCheck
  std::optional<bool> checks_later;        // defer checks to check_gradients; std::nullopt: only on CUDA, where a
                                           // check would wait for the device
  bool pad_buckets_for_bandwidth = false;  // buckets end at multiples of 65536 elements
  BucketSize bucket_size;
  bool bucketing = true;                   // false: one bucket per buffer (chunks after the first)
  at::ScalarType grad_dtype = at::kFloat;  // dtype of gradient buffers; bf16 halves the traffic, sums are less exact
  // Weight matrices have buffers of their own (nn::is_matrix): Muon keeps other states for them.
  bool matrices_apart = false;
  // Weights that layers multiply in fp8 are kept and gathered in it, with scales of this recipe, which is the layers'.
  // Needs use_distributed_optimizer.
  std::optional<ops::Fp8Recipe> fp8_params;

  // Throws a ConfigError for settings that cannot be used.
  void validate() const;
};

// Returns the settings of one chunk; `chunk` is its number on this rank. Only the first chunk is cut into buckets, and
// only to overlap: its backward ends last, and its parameters are needed first, while transfers of other chunks run
// beside its passes in one piece. (Megatron does so on the first pipeline stage alone; see docs/mapping.md.)
DdpSettings settings_of_chunk(DdpSettings settings, int chunk);

// Used by one thread per rank. The parameters and the context must outlive it. Parameters that do not require a
// gradient at construction are left out.
class DistributedDataParallel {
 public:
  DistributedDataParallel(const std::vector<nn::Parameter*>& parameters, const DdpSettings& settings,
                          const parallel::ParallelContext& context);
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  const DdpSettings& settings() const { return settings_; }
  // One buffer per dtype, fp8 included, separately for dense parameters and for experts, and with matrices_apart for
  // matrices and the rest.
  const std::vector<std::unique_ptr<ParamBuffer>>& buffers() const { return buffers_; }

  // Starts a step: the next gradients overwrite the old ones. Writes no memory.
  void zero_grad();

  // Replaces the policy for gradients that are not finite. The default is require_finite, which throws.
  void set_gradient_check(const GradientCheck& check);

  // While an object of this class is alive, backward only accumulates and starts no reduction.
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
  // Does the same without a scope, for pipeline schedules.
  void set_sync(bool on) { sync_ = on; }

  // Starts the reduction of every bucket that has not been started. Call it when no more gradients of this step will
  // come; a parameter without a gradient counts as zero.
  void start_grad_sync();
  // Calls start_grad_sync and waits for all reductions.
  void finish_grad_sync();
  // Number of buckets whose reduction has started in this step, and how many of those have finished.
  int buckets_started() const;
  int buckets_reduced() const;
  // Calls ParamBuffer::check_gradients on every buffer. Call it after finish_grad_sync.
  void check_gradients() const;
  // Whether that is where checks happen, rather than before each reduction (DdpSettings::checks_later).
  bool checks_later() const { return checks_later_; }
  // Multiplies the reduced gradients that this rank owns, by a number that the host or only the device knows.
  void scale_gradients(double factor);
  void scale_gradients(const at::Tensor& factor);

  // Call after the optimizer step: starts gathering the parameters from their owners in the background, bucket by
  // bucket in the order of the forward pass. Does nothing without the distributed optimizer.
  void start_param_gather();
  // Waits for all gathers.
  void finish_param_gather();
  // Waits until these parameters have been gathered.
  void wait_for_params(std::span<nn::Parameter* const> parameters);

 private:
  // Autograd calls the accumulation node of a parameter once per backward pass, after the last use of the parameter.
  // A recomputed region is a pass of its own, so one backward of the model may report a parameter several times. The
  // first synchronized backward records how often; from the second on, a bucket is reduced once each of its parameters
  // has reported that often.
  struct Place {
    size_t buffer = 0;
    int bucket = 0;
    int reports = 0;                                     // in this step's synchronized backward
    int expected = 0;                                    // as recorded in the first one
    std::shared_ptr<torch::autograd::Node> accumulator;  // kept alive here: autograd holds it only weakly
    uintptr_t hook = 0;
  };
  // The state of one buffer within a step.
  struct Progress {
    std::vector<int> missing;  // by bucket: parameters that have not reported as often as expected
    int started = 0;           // buckets [0, started) have been started
  };
  // The properties that all parameters of a buffer share. Buffers are in the order of their kinds.
  struct Kind {
    bool expert = false;
    at::ScalarType dtype = at::kFloat;  // as kept: kFloat8_e4m3fn for parameters in fp8
    bool matrix = false;                // with matrices_apart
    auto operator<=>(const Kind&) const = default;
  };
  // The buckets of all buffers that one group reduces, in the order in which they are started: the same on every rank.
  struct Sequence {
    // A bucket, and the position of its first parameter in the order of the forward pass.
    struct Entry {
      size_t buffer = 0;
      int bucket = 0;
      size_t first = 0;
    };
    std::vector<Entry> buckets;
    size_t started = 0;  // buckets [0, started) have been started
  };

  void add_buffer(std::vector<nn::Parameter*> parameters, const Kind& kind, const parallel::ParallelContext& context);
  void watch(nn::Parameter& parameter);
  void on_gradient(nn::Parameter& parameter);
  void report(const nn::Parameter& parameter);  // its gradient of this backward pass is complete
  void add_to_sequence(size_t buffer, bool expert, const std::vector<nn::Parameter*>& forward_order);
  void start_next(Sequence& sequence);
  void start_ready_buckets(Sequence& sequence);

  DdpSettings settings_;
  bool checks_later_ = false;
  bool sync_ = true;
  bool recorded_ = false;  // Place::expected is known
  std::vector<std::unique_ptr<ParamBuffer>> buffers_;
  std::vector<Progress> progress_;  // by buffer
  std::unordered_map<const nn::Parameter*, Place> places_;
  Sequence sequences_[2];  // dense parameters, experts
};

}  // namespace megalith::optim
