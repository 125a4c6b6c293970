// Mirrors LowRankProduct (tensor_parallel/low_rank_product.cc): update_forward its forward, take_hidden_grad its
// output_grad, give_hidden add_grad_through_update and grad_weights. A and B are fp32 and cast for each use.
#include "megalith/nn/parameter/low_rank_footprint.h"

namespace megalith::nn {

namespace {

// Returns the bytes of A or B cast to the dtype of the activations; 0 if that is fp32, their own.
double converted(const LayerWalk& walk, int64_t elements) {
  return walk.rank().bytes == 4 ? 0 : 2 * static_cast<double>(elements);
}

// Bytes of x·Aᵀ, or of its gradient.
double hidden_bytes(const LayerWalk& walk, const UpdateSize& update, double rows) {
  return rows * static_cast<double>(update.hidden) * walk.rank().bytes;
}

// Bytes of the kept dropout mask, which has the dtype of x.
double mask_bytes(const LayerWalk& walk, double mask) { return walk.rank().adapter_dropout > 0 ? mask : 0; }

}  // namespace

void update_forward(LayerWalk& walk, const UpdateSize& update, double rows, double mask, bool keep) {
  if (!update.any()) return;
  const double hidden = hidden_bytes(walk, update, rows), masked = mask_bytes(walk, mask);
  walk.take(masked);
  walk.touch(masked + converted(walk, update.a), Use::kWorkspace);
  walk.take(hidden);
  walk.touch(converted(walk, update.b), Use::kWorkspace);
  if (!keep) walk.give(hidden + masked);
}

void take_hidden_grad(LayerWalk& walk, const UpdateSize& update, double rows) {
  if (!update.any()) return;
  walk.touch(converted(walk, update.b), Use::kWorkspace);
  walk.take(hidden_bytes(walk, update, rows));
}

void give_hidden(LayerWalk& walk, const UpdateSize& update, double rows, double mask) {
  if (!update.any()) return;
  const double masked = mask_bytes(walk, mask);
  walk.touch(masked + converted(walk, update.a), Use::kWorkspace);
  walk.trained_grad(static_cast<double>(update.b));
  walk.trained_grad(static_cast<double>(update.a));
  walk.give(2 * hidden_bytes(walk, update, rows) + masked);
}

}  // namespace megalith::nn
