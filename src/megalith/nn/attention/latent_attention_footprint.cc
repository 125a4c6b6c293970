// Memory and work of LatentAttention. Mirrors latent_attention.cc: latents() are the outputs of compress() before and
// after their norms, `parts` the heads of expand(), core_ attention, out_ the output projection. Small operations
// (rotation, concatenation) are estimated.
#include "megalith/nn/attention/latent_attention.h"
#include "megalith/nn/context_parallel/context_attention_footprint.h"
#include "megalith/nn/footprint/part_footprint.h"
#include "megalith/nn/norm_footprint.h"
#include "megalith/nn/tensor_parallel/linear_footprint.h"

namespace megalith::nn {

namespace {

// Keys and values are expanded to one per query head: nothing is shared.
CoreHeads latent_attention_heads(const LatentAttentionShape& shape, const RankSizes& rank) {
  const double heads = static_cast<double>(shape.heads) / static_cast<double>(rank.tp);
  return {.query = heads,
          .key_value = heads,
          .key_dim = static_cast<double>(shape.nope_dim + shape.rotary_dim),
          .value_dim = static_cast<double>(shape.value_dim)};
}

class LatentAttentionFootprint : public PartFootprint {
 public:
  LatentAttentionFootprint(const FootprintScope& scope, const LatentAttentionShape& shape, LatentRecompute recompute)
      : rank_(scope.rank()),
        shape_(shape),
        core_(latent_attention_heads(shape, rank_), recompute.core),
        down_(scope, shape.hidden, down_parts(shape), shape.bias),
        kv_norm_(scope, {.size = shape.kv_rank}),
        q_up_(scope, shape.q_rank > 0 ? shape.q_rank : shape.hidden, q_up_parts(shape), false),
        kv_up_(scope, shape.kv_rank, kv_up_parts(shape), false),
        out_(scope, "o", shape.heads * shape.value_dim, shape.hidden, shape.bias) {
    if (shape.q_rank > 0) q_norm_.emplace(scope, NormShape{.size = shape.q_rank});
  }

  void forward(LayerWalk& walk, bool keep) const override {
    const double parts = rank_.t * rank_.bytes * core_.parts();
    walk.take(2 * latents());
    walk.touch(parts, Use::kWorkspace);  // heads before rotation
    walk.take(parts);
    core_.forward(walk, keep);
    out_.forward(walk, keep);
    if (keep) return core_.release_copied(walk);
    walk.give(2 * latents() + parts + rank_.t * rank_.bytes * core_.out());
  }

  void backward(LayerWalk& walk, bool /*wanted*/) const override {
    const double parts = rank_.t * rank_.bytes * core_.parts();
    out_.backward(walk, {});
    core_.backward(walk);
    walk.touch(2 * parts, Use::kWorkspace);  // gradients of the heads, before and after the rotation's backward
    walk.give(parts);
    walk.touch(2 * latents());  // their gradients, through the norms
    walk.give(2 * latents());
    walk.take(rank_.stream());  // the gradient of the input takes the place of the input
    walk.give(rank_.stream());
  }

  void work(WorkMeter& meter) const override {
    const double parts = rank_.t * rank_.bytes * core_.parts();
    meter.product(rank_.s, down_.out(), rank_.h);
    meter.product(rank_.t, q_up_.out(), q_up_.in());
    meter.product(rank_.t, kv_up_.out(), kv_up_.in());
    meter.product(rank_.t, rank_.h, out_.in());
    meter.stream_collectives();
    meter.moves(4 * parts, 6 * parts);
    core_.work(meter);
  }

  // Adapters on latent attention are not counted: the planner refuses them.
  bool counts_updates() const override { return false; }

 private:
  // Returns the bytes of both latents.
  double latents() const { return rank_.s * rank_.bytes * static_cast<double>(shape_.q_rank + shape_.kv_rank); }

  const RankSizes& rank_;
  LatentAttentionShape shape_;
  ContextAttentionFootprint core_;
  ReplicatedFootprint down_;
  std::optional<NormFootprint> q_norm_;
  NormFootprint kv_norm_;
  ColumnFootprint q_up_, kv_up_;
  RowFootprint out_;
};

}  // namespace

std::unique_ptr<PartFootprint> make_footprint(const FootprintScope& scope, const LatentAttentionShape& shape,
                                              LatentRecompute recompute) {
  return std::make_unique<LatentAttentionFootprint>(scope, shape, recompute);
}

}  // namespace megalith::nn
