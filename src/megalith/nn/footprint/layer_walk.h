// LayerWalk: a MemoryWalk plus what all layers have in common: collectives, weight gradients, and the bytes that
// outlive a layer's backward.
//
// A footprint follows the code of its layer tensor by tensor: take() where a tensor is created, give() where the last
// reference to it is dropped, touch() for temporaries inside one operation.
#pragma once

#include <utility>

#include "megalith/nn/footprint/held_jobs.h"
#include "megalith/nn/footprint/memory_walk.h"
#include "megalith/nn/footprint/rank_sizes.h"

namespace megalith::nn {

// One walk covers a forward or a backward pass of one or several layers. Not thread-safe.
class LayerWalk {
 public:
  // `rank` and `memory` outlive it. With `defer`, weight gradients wait for a separate action (zero bubble).
  LayerWalk(const RankSizes& rank, MemoryWalk& memory, bool defer = false)
      : rank_(rank), memory_(memory), defers_(defer) {}

  // The sizes of the rank, and the steps of MemoryWalk.
  const RankSizes& rank() const { return rank_; }
  void take(double bytes, Use use = Use::kActivation) { memory_.take(bytes, use); }
  void give(double bytes, Use use = Use::kActivation) { memory_.give(bytes, use); }
  void touch(double bytes, Use use = Use::kActivation) { memory_.touch(bytes, use); }
  void cut() { memory_.cut(); }

  // Count the temporary copies that a backend allocates during a collective over tp on so many bytes.
  void all_reduce(double bytes);
  void reduce_scatter(double bytes_in);
  // Forward: the partial sums [t, h] of each rank become the residual stream [s, h].
  void sum_over_ranks();
  // Counts the temporary product that becomes a weight's gradient; on a GPU, and in fp32, it is written straight into
  // the buffer. Frozen weights have none.
  void weight_grad(double elements);
  // The same for a parameter that is trained in any case.
  void trained_grad(double elements);

  // Deferred weight gradients hold their inputs and output gradients until their own action frees them.
  bool defers() const { return defers_; }
  void defer(double bytes) { deferred_ += bytes; }
  void give_or_defer(double bytes);  // for bytes that only a weight gradient still needs
  double deferred() const { return deferred_; }
  // A deferred one may also hold the gradient of the residual stream: the preceding norm must not free that.
  void hold_stream_grad() { stream_grad_held_ = true; }
  bool release_stream_grad() { return std::exchange(stream_grad_held_, false); }

  // Weight gradients that are held for a collective to run beside (weight_grad_queue.h), and what they keep until then.
  struct HeldGrad {
    double elements = 0;       // how many the weight has
    double activations = 0;    // bytes
    double communication = 0;  // bytes
    double workspace = 0;      // bytes that exist while it is computed
  };
  bool covers() const { return rank_.tp_overlap && rank_.split_tokens && !rank_.frozen && !defers_; }
  // `width` is the number of columns of the collectives beside which it may run: large ones are held in halves.
  void hold(const HeldGrad& grad, double width);
  bool holds() const { return held_.work() > 0; }
  // A collective on [t, width] runs beside held gradients.
  void cover(double width);
  // Without a collective, only as many run as may not be held. At the end of a pass all of them do.
  void cover_nothing() { held_.run(0); }
  void end_pass();

  // Bytes that live as long as the autograd graph, beyond the backward of their layer.
  void leave_to_graph(double bytes) { leftover_ += bytes; }
  double exchange_leftover(double bytes) { return std::exchange(leftover_, bytes); }
  double leftover() const { return leftover_; }

 private:
  const RankSizes& rank_;
  MemoryWalk& memory_;
  const bool defers_;
  bool stream_grad_held_ = false;
  double deferred_ = 0;  // bytes held by deferred weight gradients
  HeldJobs held_;
  double leftover_ = 0;
};

}  // namespace megalith::nn
