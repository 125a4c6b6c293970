// Memory and work of SelfAttention. Mirrors self_attention.cc line by line: `fused` is the projection [t, (n + 2g)
// d/tp] with the gates, `parts` are q, k and v after split_qkv, core_ is context_attention, out_ the output projection.
//
// Kept for backward: x (by qkv, unless its weight is frozen), q, k, v, the result and its log-sum-exp (by core, and by
// `o` as its input); the projection itself only if head norms need it.
#include <algorithm>

#include "megalith/nn/attention/self_attention.h"
#include "megalith/nn/context_parallel/context_attention_footprint.h"
#include "megalith/nn/footprint/part_footprint.h"
#include "megalith/nn/norm_footprint.h"
#include "megalith/nn/tensor_parallel/linear_footprint.h"

namespace megalith::nn {

namespace {

// Heads of this rank; with fewer key/value heads than ranks each rank has one (exchange_kv).
CoreHeads self_attention_heads(const AttentionShape& shape, const RankSizes& rank) {
  const auto tp = static_cast<double>(rank.tp), dim = static_cast<double>(shape.head_dim);
  return {.query = static_cast<double>(shape.heads) / tp,
          .key_value = std::max(1.0, static_cast<double>(shape.kv_heads) / tp),
          .key_dim = dim,
          .value_dim = dim,
          .window = static_cast<double>(shape.window)};
}

std::optional<NormFootprint> head_norm_footprint(const FootprintScope& scope, const AttentionShape& shape) {
  if (!shape.qk_norm) return std::nullopt;
  return NormFootprint(scope, *shape.qk_norm);
}

class SelfAttentionFootprint : public PartFootprint {
 public:
  SelfAttentionFootprint(const FootprintScope& scope, const AttentionShape& shape, const std::vector<OutputPart>& qkv,
                         const std::string& out, bool recompute_core)
      : rank_(scope.rank()),
        gate_(shape.output_gate),
        shared_kv_(rank_.tp > shape.kv_heads ? static_cast<double>(shape.kv_heads * shape.head_dim) : 0),
        core_(self_attention_heads(shape, rank_), recompute_core),
        qkv_(scope, shape.hidden, qkv, shape.qkv_bias),
        q_norm_(head_norm_footprint(scope.child("q_norm"), shape)),
        k_norm_(head_norm_footprint(scope.child("k_norm"), shape)),
        out_(scope, out, shape.heads * shape.head_dim, shape.hidden, shape.out_bias) {}

  void forward(LayerWalk& walk, bool keep) const override {
    const double b = rank_.t * rank_.bytes, fused = b * qkv_.out(), parts = b * core_.parts();
    qkv_.forward(walk, keep);
    if (keep && !keeps_input() && !rank_.discards_norms) walk.give(rank_.stream());
    // exchange_kv: slices, gathered and permuted, all alive at once.
    if (shared_kv_ > 0) walk.touch(b * 5 * shared_kv_, Use::kCommunication);
    if (gate_) walk.take(parts);  // the projection without the gates
    walk.take(parts);
    if (!keep || !q_norm_) walk.give(gate_ ? parts : fused);
    core_.forward(walk, keep);
    if (gate_) walk.take(2 * b * core_.q());
    out_.forward(walk, keep);
    if (gate_) walk.give(fused);
    if (keep) return core_.release_copied(walk);
    walk.give(parts + b * core_.out() + (gate_ ? 2 * b * core_.q() : 0));
  }

  void backward(LayerWalk& walk, bool wanted) const override {
    const double b = rank_.t * rank_.bytes, fused = b * qkv_.out(), parts = b * core_.parts();
    out_.backward(walk, {});  // does not free its input: attention keeps that as its result
    if (gate_) {
      walk.touch(2 * b * core_.q());
      walk.give(2 * b * core_.q());
    }
    // split_qkv's backward writes the gradients of q, k and v into one tensor.
    core_.backward(walk);
    walk.take(fused);
    walk.give(parts);
    if (q_norm_) walk.give(gate_ ? parts : fused);
    if (shared_kv_ > 0) walk.touch(b * (5 * shared_kv_ + qkv_.out()), Use::kCommunication);
    qkv_.backward(walk, wanted);
  }

  void work(WorkMeter& meter) const override {
    const double fused = rank_.t * rank_.bytes * qkv_.out();
    meter.branch(qkv_.out(), out_.in());
    meter.moves(2 * fused, 2 * fused);
    core_.work(meter);
  }

  bool keeps_input() const override { return qkv_.keeps_input(rank_); }

 private:
  const RankSizes& rank_;
  bool gate_;
  double shared_kv_;  // columns of all keys if the ranks exchange them (fewer key heads than ranks), else 0
  ContextAttentionFootprint core_;
  ColumnFootprint qkv_;
  std::optional<NormFootprint> q_norm_, k_norm_;
  RowFootprint out_;
};

}  // namespace

std::unique_ptr<PartFootprint> make_footprint(const FootprintScope& scope, const AttentionShape& shape,
                                              bool recompute_core) {
  return std::make_unique<SelfAttentionFootprint>(scope, shape, qkv_parts(shape), "o", recompute_core);
}

std::unique_ptr<PartFootprint> make_footprint(const FootprintScope& scope, const AttentionShape& shape,
                                              const std::vector<OutputPart>& qkv, const std::string& out) {
  return std::make_unique<SelfAttentionFootprint>(scope, shape, qkv, out, /*recompute_core=*/false);
}

}  // namespace megalith::nn
