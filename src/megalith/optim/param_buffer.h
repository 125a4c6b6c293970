// ParamBuffer: the parameters of one dtype in a model chunk (fp8 is one of them) and their gradients, in two flat
// buffers with the same layout, and the collectives on their buckets.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

#include "megalith/base/exact_sum.h"
#include "megalith/comm/group.h"
#include "megalith/nn/parameter/parameter.h"
#include "megalith/ops/gemm/fp8.h"
#include "megalith/ops/kernel/host_values.h"
#include "megalith/optim/buffer_layout.h"
#include "megalith/optim/gradient_check.h"

namespace megalith::optim {

// The groups that reduce gradients. With the distributed optimizer (ZeRO-1) the ranks of `shards` own equal parts of
// each bucket; `instances` are the ranks that own the same part in the other optimizer instances.
struct ReduceGroups {
  comm::Group all;        // every replica of these parameters: dp_cp, or edp for experts
  bool sharded = false;   // the distributed optimizer
  comm::Group shards;     // within one optimizer instance; sharded only
  comm::Group instances;  // across optimizer instances; sharded only
};

// Whether a buffer checks that its gradients are finite, and when it notifies the GradientCheck.
enum class FiniteMeasure {
  kNone,             // not at all: BucketGradients::finite is always true
  kBeforeReduction,  // at once: the host waits for the result before each reduction
  kLater             // in check_gradients(), so that no reduction waits for the host, unless the check reads gradients
};

// How gradients are reduced.
struct ReduceRules {
  double factor = 1;                         // multiplies the gradients before the reduction
  comm::ReduceOp op = comm::ReduceOp::kSum;  // the reduction itself
  FiniteMeasure measure = FiniteMeasure::kNone;
  at::ScalarType grad_dtype = at::kFloat;  // dtype of the buffer and of the reduction
  // This rank is the only one in the run, so nothing changes the gradients of a bucket before the optimizer reads them:
  // on CUDA a single pass over them serves both the NaN check and the norm.
  bool alone = false;
};

// Used by one thread per rank. The parameters must outlive it; after construction, their values and main_grads are
// views of its two buffers.
class ParamBuffer {
 public:
  // `number` is the position of the buffer in its chunk, for messages. With `fp8` the parameters are kept in fp8, with
  // the scales of that recipe (nn/parameter/fp8_value.h). They have no numbers then until the optimizer casts its main
  // parameters, which it takes from nn::Fp8Value::loaded, the values so far.
  ParamBuffer(std::vector<nn::Parameter*> parameters, const BufferRules& rules, const ReduceRules& reduce,
              ReduceGroups groups, size_t number, const std::optional<ops::Fp8Recipe>& fp8 = {});
  ParamBuffer(const ParamBuffer&) = delete;
  ParamBuffer& operator=(const ParamBuffer&) = delete;

  // The position of the buffer in its chunk, and the places of parameters and buckets in it.
  size_t number() const { return number_; }
  const BufferLayout& layout() const { return layout_; }
  // Indexed like BufferLayout::items.
  const std::vector<nn::Parameter*>& parameters() const { return parameters_; }
  const ReduceGroups& groups() const { return groups_; }
  int shard_rank() const { return groups_.sharded ? groups_.shards.rank() : 0; }

  const at::Tensor& params() const { return params_; }  // [n]
  const at::Tensor& grads() const { return grads_; }    // [n]
  // The recipe of parameters in fp8, and the inverse scales of all of them, fp32 [n], in the order of parameters() and
  // with padding between them (kFp8ScaleMultiple). Each nn::Fp8Value::inverse_scale is a view of it.
  const std::optional<ops::Fp8Recipe>& fp8() const { return fp8_; }
  const at::Tensor& inverse_scales() const { return inverse_scales_; }
  // Returns this rank's part of a bucket in `flat`, which is params() or grads().
  at::Tensor own(const at::Tensor& flat, int bucket) const;

  // Replaces the policy for gradients that are not finite. The default is require_finite, which throws.
  void set_gradient_check(GradientCheck check) { check_ = std::move(check); }

  // Starts a step: the next gradients overwrite the old ones instead of adding to them.
  void mark_stale();
  // Starts the reduction of a bucket. No more gradients may come in this step; a missing one counts as zero. All ranks
  // must start buckets in the same order.
  void start_reduce(int bucket);
  // With several optimizer instances a reduction has a second half, the sum over the instances. Waits for the first
  // half and starts the second; on CUDA start_reduce has already queued it. Does nothing with one instance, or when
  // called again. All ranks must continue buckets in the same order.
  void continue_reduce(int bucket);
  // Whether a reduction that was started has finished.
  bool reduced(int bucket) const;
  // Waits for the reduction. Afterwards own(grads(), bucket) holds the reduced gradients.
  void finish_reduce(int bucket);

  // On a single-rank CUDA run, start_reduce queues a sum of the squared gradients of the bucket without waiting for it.
  // Returns that sum, one fp64 number on the device; undefined otherwise.
  at::Tensor squares_on_device(int bucket) const;
  // Returns an int on the device for each bucket of FiniteMeasure::kLater, 0 if its gradients were finite before the
  // reduction. Empty where the GradientCheck has been notified already.
  std::vector<at::Tensor> flags_on_device() const;
  // Notifies the GradientCheck of buckets that start_reduce measured without waiting: those with such a sum, and those
  // of FiniteMeasure::kLater. Waits for the device. Throws whatever the check throws.
  void check_gradients() const;
  // Multiplies the reduced gradients that this rank owns, and the sums of their squares: `factor` is one fp64 number on
  // their device, or known to the host.
  void scale_own(const at::Tensor& factor);
  void scale_own(double factor);

  // Starts gathering the parameters of a bucket from the ranks that own them. Does nothing without the distributed
  // optimizer.
  void start_gather(int bucket);
  // Waits for the gather, if one was started.
  void finish_gather(int bucket);

 private:
  bool spans_instances() const { return groups_.sharded && groups_.instances.size() > 1; }
  void make_scales();
  void zero_missing(int bucket);

  // A number that start_reduce measured; `on_host` receives its value asynchronously.
  struct Measured {
    explicit Measured(const at::Tensor& number) : on_device(number), on_host(number) {}
    at::Tensor on_device;
    ops::HostScalar on_host;
  };

  const size_t number_;
  std::vector<nn::Parameter*> parameters_;
  ReduceRules reduce_;
  ReduceGroups groups_;
  BufferLayout layout_;
  const std::optional<ops::Fp8Recipe> fp8_;
  at::Tensor params_, grads_;
  at::Tensor inverse_scales_;  // with fp8_
  GradientCheck check_;
  std::vector<comm::Work> reducing_, gathering_;           // by bucket
  std::vector<std::optional<comm::Work>> over_instances_;  // by bucket; set once the second half has started
  std::optional<c10::Stream> between_halves_;              // the stream on which the second half waits for the first
  // By bucket. The sums of squares on the device follow scale_own; on the host they are those before it.
  std::vector<std::optional<Measured>> squares_;
  std::vector<std::optional<Measured>> flagged_;  // 0 if all were finite before the reduction
};

}  // namespace megalith::optim
