// ParamBuffer: parameters of one dtype of a model chunk and their gradients, in two flat buffers of one layout, and the
// collectives on their buckets.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

#include "megalith/base/exact_sum.h"
#include "megalith/comm/group.h"
#include "megalith/nn/parameter/parameter.h"
#include "megalith/ops/kernel/host_values.h"
#include "megalith/optim/buffer_layout.h"
#include "megalith/optim/gradient_check.h"

namespace megalith::optim {

// Who reduces what. With the distributed optimizer (ZeRO-1) the ranks of `shards` own equal parts of each bucket;
// `instances` are the ranks that own the same part in the other optimizer instances.
struct ReduceGroups {
  comm::Group all;        // every replica of these parameters: dp_cp, or edp for experts
  bool sharded = false;   // the distributed optimizer
  comm::Group shards;     // within one optimizer instance; sharded only
  comm::Group instances;  // across optimizer instances; sharded only
};

// Whether a buffer measures that its gradients are finite, and when it tells the GradientCheck.
enum class FiniteMeasure {
  kNone,             // BucketGradients::finite is always true
  kBeforeReduction,  // the host waits for the result
  kLater             // in check_gradients: no reduction waits for the host, unless the GradientCheck reads gradients
};

struct ReduceRules {
  double factor = 1;                         // multiplies the gradients first
  comm::ReduceOp op = comm::ReduceOp::kSum;  // then
  FiniteMeasure measure = FiniteMeasure::kNone;
  at::ScalarType grad_dtype = at::kFloat;  // of the buffer and of the reduction
  // This rank is the only one: nothing comes between the gradients of a bucket and the optimizer, and on CUDA one pass
  // over them serves both, the NaN check and the norm.
  bool alone = false;
};

// One thread a rank. The parameters outlive it; from construction on their values and main_grads are views of it.
class ParamBuffer {
 public:
  // `number`: its place among the buffers of its chunk, for messages.
  ParamBuffer(std::vector<nn::Parameter*> parameters, const BufferRules& rules, const ReduceRules& reduce,
              ReduceGroups groups, size_t number);
  ParamBuffer(const ParamBuffer&) = delete;
  ParamBuffer& operator=(const ParamBuffer&) = delete;

  size_t number() const { return number_; }
  const BufferLayout& layout() const { return layout_; }
  // By item of the layout.
  const std::vector<nn::Parameter*>& parameters() const { return parameters_; }
  const ReduceGroups& groups() const { return groups_; }
  int shard_rank() const { return groups_.sharded ? groups_.shards.rank() : 0; }

  const at::Tensor& params() const { return params_; }  // [n]
  const at::Tensor& grads() const { return grads_; }    // [n]
  // This rank's part of a bucket, of either buffer.
  at::Tensor own(const at::Tensor& flat, int bucket) const;

  // From now on `check` decides about gradients; require_finite does at first.
  void set_gradient_check(GradientCheck check) { check_ = std::move(check); }

  // Gradients of the next step overwrite what is there.
  void mark_stale();
  // Starts the reduction of a bucket: every gradient is there, or none will come (it is then zero). Buckets are started
  // in the same order on all ranks.
  void start_reduce(int bucket);
  // Where optimizer instances share the gradients, a reduction has a second half: the sum over the instances. Starts it
  // when the first half is done, for which it waits; on CUDA start_reduce has queued it already. Nothing elsewhere, and
  // in a second call. Buckets come in the same order on all ranks.
  void continue_reduce(int bucket);
  // Whether a reduction that was started is over.
  bool reduced(int bucket) const;
  // Waits for it. Afterwards own(grads(), bucket) holds the reduced gradients.
  void finish_reduce(int bucket);

  // For a rank that is alone on CUDA start_reduce starts a sum of the squares of a bucket's gradients and does not wait
  // for it. On the device, one fp64 number; undefined elsewhere, and when the gradients have been changed since.
  at::Tensor squares_on_device(int bucket) const;
  // The same on the host; waits for it.
  std::optional<ExactSum> known_squares(int bucket) const;
  // Tells the GradientCheck about buckets that start_reduce measured without waiting: those with such a sum, and those
  // of FiniteMeasure::kLater. Throws what the check throws.
  void check_gradients() const;
  // Gradients are about to be changed in place. Tells the check about buckets with a sum first.
  void forget_squares();

  // Starts to collect the parameters of a bucket from the ranks that own them; nothing without the distributed
  // optimizer.
  void start_gather(int bucket);
  // Waits for it; nothing when none was started.
  void finish_gather(int bucket);

 private:
  bool spans_instances() const { return groups_.sharded && groups_.instances.size() > 1; }
  void zero_missing(int bucket);
  void check_squares() const;

  struct Squares {
    at::Tensor on_device;
    ops::HostScalar on_host;
  };

  const size_t number_;
  std::vector<nn::Parameter*> parameters_;
  ReduceRules reduce_;
  ReduceGroups groups_;
  BufferLayout layout_;
  at::Tensor params_, grads_;
  GradientCheck check_;
  std::vector<comm::Work> reducing_, gathering_;           // by bucket
  std::vector<std::optional<comm::Work>> over_instances_;  // by bucket; nothing before the first half is done
  std::optional<c10::Stream> between_halves_;              // the stream on which the second half waits for the first
  std::vector<std::optional<Squares>> squares_;            // by bucket
  std::vector<std::optional<ops::HostScalar>> flagged_;    // by bucket; 0: all were finite before the reduction
};

}  // namespace megalith::optim
