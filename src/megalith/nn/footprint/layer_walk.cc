// Temporary copies by backend: NCCL reduces in place; Gloo's reduce-scatter works on a copy of its input; for ranks
// that are threads, one rank holds the sum of an all-reduce until all have read it.
#include "megalith/nn/footprint/layer_walk.h"

#include <limits>

namespace megalith::nn {

using Collectives = Machinery::Collectives;

void LayerWalk::all_reduce(double bytes) {
  if (rank_.tp > 1 && rank_.machinery.collectives == Collectives::kThreads) touch(bytes, Use::kCommunication);
}

void LayerWalk::reduce_scatter(double bytes_in) {
  if (rank_.machinery.collectives != Collectives::kNccl) touch(bytes_in, Use::kCommunication);
}

// The end of RowLinear::forward. The partial sums [t, h] count as communication if only a share of them is kept.
void LayerWalk::sum_over_ranks() {
  if (!rank_.split_tokens) {
    take(rank_.whole());
    return all_reduce(rank_.whole());
  }
  take(rank_.whole(), Use::kCommunication);
  take(rank_.stream());
  reduce_scatter(rank_.whole());
  give(rank_.whole(), Use::kCommunication);
}

void LayerWalk::weight_grad(double elements) {
  if (!rank_.frozen) trained_grad(elements);
}

void LayerWalk::trained_grad(double elements) {
  if (rank_.machinery.cuda || rank_.bytes == 4 || defers_) return;
  // The CPU computes the product in 16 bits (2 bytes per element); to add it, ATen first widens it to fp32 (4 more).
  touch(elements * (rank_.accumulates ? 6 : 2), Use::kWorkspace);
}

// As DenseProduct::grad_weights.
void LayerWalk::hold(const HeldGrad& grad, double width) {
  const bool halves = grad.elements >= 4 * cover_work(width * rank_.bytes);
  const auto begin = [this, grad] {
    weight_grad(grad.elements);
    take(grad.workspace, Use::kWorkspace);
  };
  const auto end = [this, grad] {
    give(grad.workspace, Use::kWorkspace);
    give(grad.communication, Use::kCommunication);
    give(grad.activations);
  };
  if (halves) held_.add(grad.elements / 2, begin);
  held_.add(halves ? grad.elements / 2 : grad.elements, [begin, end, halves] {
    if (!halves) begin();
    end();
  });
}

void LayerWalk::cover(double width) { held_.run(cover_work(width * rank_.bytes)); }

void LayerWalk::end_pass() { held_.run(std::numeric_limits<double>::infinity()); }

void LayerWalk::give_or_defer(double bytes) {
  if (defers_)
    deferred_ += bytes;
  else
    give(bytes);
}

}  // namespace megalith::nn
