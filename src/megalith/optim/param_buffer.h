// ParamBuffer: parameters of one dtype of a model chunk and their gradients, in two flat buffers of one layout, and the
// collectives on their buckets.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megalith/base/exact_sum.h"
#include "megalith/comm/group.h"
#include "megalith/nn/parameter/parameter.h"
#include "megalith/ops/kernel/host_values.h"
#include "megalith/optim/buffer_layout.h"

namespace megalith::optim {

// Who reduces what. With the distributed optimizer (ZeRO-1) the ranks of `shards` own equal parts of each bucket;
// `instances` are the ranks that own the same part in the other optimizer instances.
struct ReduceGroups {
  comm::Group all;        // every replica of these parameters: dp_cp, or edp for experts
  bool sharded = false;   // the distributed optimizer
  comm::Group shards;     // within one optimizer instance; sharded only
  comm::Group instances;  // across optimizer instances; sharded only
};

struct ReduceRules {
  double factor = 1;                         // multiplies the gradients first
  comm::ReduceOp op = comm::ReduceOp::kSum;  // then
  bool check_for_nan = false;                // NonFiniteGradient
  bool checks_later = false;                 // by check_gradients alone: no reduction waits for a look of the host
  at::ScalarType grad_dtype = at::kFloat;    // of the buffer and of the reduction
  // This rank is the only one: nothing comes between the gradients of a bucket and the optimizer, and on CUDA one pass
  // over them serves both, the look for NaN and the norm.
  bool alone = false;
};

// A gradient has a NaN or an infinity; the message names the parameter and the rank.
class NonFiniteGradient : public Error {
 public:
  using Error::Error;
};

// Is told of the gradients of a bucket just before they are reduced, or later (ParamBuffer::check_gradients). `finite`:
// nothing in them was NaN or infinite before (true as well where that is not looked at). Returns true when it takes
// care of such gradients itself: NonFiniteGradient is not thrown then.
using GradientWatch = std::function<bool(int bucket, const at::Tensor& grads, bool finite)>;

// One thread a rank. The parameters outlive it; from construction on their values and main_grads are views of it.
class ParamBuffer {
 public:
  ParamBuffer(std::vector<nn::Parameter*> parameters, const BufferRules& rules, const ReduceRules& reduce,
              ReduceGroups groups);
  ParamBuffer(const ParamBuffer&) = delete;
  ParamBuffer& operator=(const ParamBuffer&) = delete;

  const BufferLayout& layout() const { return layout_; }
  // By item of the layout.
  const std::vector<nn::Parameter*>& parameters() const { return parameters_; }
  const ReduceGroups& groups() const { return groups_; }
  int shard_rank() const { return groups_.sharded ? groups_.shards.rank() : 0; }

  const at::Tensor& params() const { return params_; }  // [n]
  const at::Tensor& grads() const { return grads_; }    // [n]
  // This rank's part of a bucket, of either buffer.
  at::Tensor own(const at::Tensor& flat, int bucket) const;

  // `reads`: it looks at the gradients themselves, and so is always told before they are reduced.
  void watch_gradients(GradientWatch watch, bool reads);

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
  // The look at gradients that start_reduce has left for later because it does not wait: at buckets with such a sum,
  // and with checks_later. Nothing elsewhere. Throws NonFiniteGradient.
  void check_gradients() const;
  // Gradients are about to be changed in place. Looks at them first.
  void forget_squares();

  // Starts to collect the parameters of a bucket from the ranks that own them; nothing without the distributed
  // optimizer.
  void start_gather(int bucket);
  // Waits for it; nothing when none was started.
  void finish_gather(int bucket);

 private:
  bool spans_instances() const { return groups_.sharded && groups_.instances.size() > 1; }
  void zero_missing(int bucket);
  void look_at_squares() const;
  void look_at(int bucket, bool finite, bool reduced = false) const;
  void check_finite(int bucket, bool reduced) const;
  at::Tensor bucket_grads(int bucket) const;

  struct Squares {
    at::Tensor on_device;
    ops::HostScalar on_host;
  };

  std::vector<nn::Parameter*> parameters_;
  ReduceRules reduce_;
  ReduceGroups groups_;
  BufferLayout layout_;
  at::Tensor params_, grads_;
  GradientWatch watch_;  // may be empty
  bool watch_reads_ = false;
  std::vector<comm::Work> reducing_, gathering_;           // by bucket
  std::vector<std::optional<comm::Work>> over_instances_;  // by bucket; nothing before the first half is done
  std::optional<c10::Stream> between_halves_;              // the stream on which the second half waits for the first
  std::vector<std::optional<Squares>> squares_;            // by bucket
  std::vector<std::optional<ops::HostScalar>> flagged_;    // by bucket; 0: all were finite before the reduction
};

}  // namespace megalith::optim
