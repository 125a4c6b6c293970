// Mirrors LowRankProduct (tensor_parallel/low_rank_product.cc): update_forward its forward, take_hidden_grad its
// output_grad, give_hidden add_grad_through_update and grad_weights. A and B are fp32 and cast for each use. With
// magnitudes they mirror DoraProduct (tensor_parallel/dora_product.cc), which computes norms when it is made, and keeps
// them, the scales and the unscaled output.
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

// Bytes of the unscaled output of a layer with magnitudes, and of the scaled gradient of its output.
double unscaled_bytes(const LayerWalk& walk, const UpdateSize& update, double rows) {
  return rows * static_cast<double>(update.outputs) * walk.rank().bytes;
}

// Bytes of the sums of weight and update whose norms are computed at once, in fp32, and of these rows of a weight in 4
// or 8 bits.
double norm_bytes(const LayerWalk& walk, const UpdateSize& update) {
  return static_cast<double>(update.norm_block) * (4 + (walk.rank().quantization ? walk.rank().bytes : 0));
}

// Bytes of norms and scales, in fp32.
double scale_bytes(const UpdateSize& update) { return 4 * static_cast<double>(update.magnitudes + update.outputs); }

}  // namespace

void update_forward(LayerWalk& walk, const UpdateSize& update, double rows, double mask, bool keep) {
  if (!update.any()) return;
  const double hidden = hidden_bytes(walk, update, rows), masked = mask_bytes(walk, mask);
  walk.take(masked);
  walk.touch(masked + converted(walk, update.a), Use::kWorkspace);
  walk.take(hidden);
  walk.touch(converted(walk, update.b), Use::kWorkspace);
  if (update.magnitudes > 0) {
    walk.touch(norm_bytes(walk, update), Use::kWorkspace);
    walk.take(unscaled_bytes(walk, update, rows) + scale_bytes(update));
    if (masked > 0) walk.touch(masked + unscaled_bytes(walk, update, rows), Use::kWorkspace);
    if (!keep) walk.give(unscaled_bytes(walk, update, rows) + scale_bytes(update));
  }
  if (!keep) walk.give(hidden + masked);
}

void take_hidden_grad(LayerWalk& walk, const UpdateSize& update, double rows) {
  if (!update.any()) return;
  walk.take(unscaled_bytes(walk, update, rows));
  walk.touch(converted(walk, update.b), Use::kWorkspace);
  walk.take(hidden_bytes(walk, update, rows));
}

void give_hidden(LayerWalk& walk, const UpdateSize& update, double rows, double mask) {
  if (!update.any()) return;
  const double masked = mask_bytes(walk, mask);
  walk.touch(masked + converted(walk, update.a), Use::kWorkspace);
  walk.trained_grad(static_cast<double>(update.b));
  walk.trained_grad(static_cast<double>(update.a));
  if (update.magnitudes > 0) {
    walk.touch(4 * rows * static_cast<double>(update.largest_part), Use::kWorkspace);
    walk.give_or_defer(2 * unscaled_bytes(walk, update, rows));  // read by the gradients of magnitudes and of B
    walk.give(scale_bytes(update));
  }
  walk.give(2 * hidden_bytes(walk, update, rows) + masked);
}

}  // namespace megalith::nn
