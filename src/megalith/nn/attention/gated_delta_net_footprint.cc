// Memory and work of GatedDeltaNet. The layer consists of many small operations, so that the bytes they keep are an
// estimate. With context parallelism a rank has cp times the tokens of 1/cp of the heads between the two exchanges: as
// many bytes as without it for the rank's own tokens, plus the buffers of the exchanges.
#include "megalith/nn/attention/gated_delta_net.h"

#include <algorithm>

#include "megalith/nn/footprint/part_footprint.h"
#include "megalith/nn/norm_footprint.h"
#include "megalith/nn/tensor_parallel/linear_footprint.h"
#include "megalith/ops/attention/delta_rule.h"

namespace megalith::nn {

namespace {

// The constructor adds parameters in the order of GatedDeltaNet's: in, conv, a_log, dt_bias, norm, out.
class DeltaNetFootprint : public PartFootprint {
 public:
  DeltaNetFootprint(const FootprintScope& scope, const DeltaNetShape& shape)
      : rank_(scope.rank()),
        keys_(on_rank(shape.key_heads * shape.key_dim)),
        values_(on_rank(shape.value_heads * shape.value_dim)),
        spread_(on_rank(shape.value_heads * shape.key_dim)),
        numbers_(on_rank(2 * shape.value_heads)) {
    const ColumnFootprint in(scope, shape.hidden, in_parts(shape), false);
    const int64_t heads = shape.value_heads / rank_.tp;
    scope.add((2 * shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim) / rank_.tp *
              shape.conv_kernel);
    scope.add(heads);  // a_log
    scope.add(heads);  // dt_bias
    const NormFootprint norm(scope, {.size = shape.value_dim});
    const RowFootprint out(scope, "out", shape.value_heads * shape.value_dim, shape.hidden, false);
  }

  void forward(LayerWalk& walk, bool keep) const override {
    walk.touch(exchange(traded()), Use::kCommunication);
    walk.take(held());
    walk.touch(exchange(values_), Use::kCommunication);
    walk.sum_over_ranks();
    if (!keep) walk.give(held());
  }

  void backward(LayerWalk& walk, bool /*wanted*/) const override {
    walk.touch(exchange(values_), Use::kCommunication);
    walk.touch(held() / 3, Use::kWorkspace);  // gradients of the operations in progress
    walk.give(held());
    walk.touch(exchange(traded()), Use::kCommunication);
    walk.take(rank_.stream());
    walk.give(rank_.stream());  // the norm's output
    walk.take(rank_.stream());  // its gradient
  }

  void work(WorkMeter& meter) const override {
    const double bytes = 4 * rank_.t * (8 * keys_ + 12 * values_);
    meter.branch(2 * (keys_ + values_), values_);
    meter.moves(bytes, 3 * bytes);
    if (rank_.cp == 1) return;
    meter.head_exchange(rank_.t * rank_.bytes * traded());
    meter.head_exchange(rank_.t * rank_.bytes * values_);
  }

  bool counts_updates() const override { return false; }

 private:
  // Bytes of everything between the projections, in fp32, and the order of tokens that each exchange keeps.
  double held() const {
    const double orders = rank_.cp == 1 ? 0 : 2 * order();
    // Per value head, five matrices of each chunk by itself: the decay between two tokens, and the products of queries
    // and of keys with keys, before it and after it.
    const double chunks = 5 * numbers_ / 2 * std::min<double>(ops::kDeltaRuleChunk, rank_.length);
    return 4 * rank_.t * (3 * (2 * keys_ + values_) + 4 * keys_ + 4 * spread_ + 6 * values_ + chunks) + orders;
  }
  // Columns that travel to the ranks of their heads: q, k, v, b and a.
  double traded() const { return 2 * keys_ + values_ + numbers_; }
  // Bytes of the buffers of an exchange: what is sent, what arrives, and the latter in the order of its tokens.
  double exchange(double columns) const { return rank_.cp == 1 ? 0 : 3 * rank_.t * rank_.bytes * columns + order(); }
  // Bytes of one int64 per token of all ranks.
  double order() const { return 8 * rank_.t * static_cast<double>(rank_.cp); }

  double on_rank(int64_t channels) const { return static_cast<double>(channels) / static_cast<double>(rank_.tp); }

  const RankSizes& rank_;
  double keys_, values_;  // channels of this rank
  double spread_;         // channels of keys, repeated for each value head
  double numbers_;        // two per value head
};

}  // namespace

// Input projection (q, k, v, the gate and two numbers per head), convolution, four products with the state, and output
// projection, counted like Megatron-LM, which assumes that keys are as wide as values.
double multiplications(const DeltaNetShape& shape) {
  const auto hidden = static_cast<double>(shape.hidden), heads = static_cast<double>(shape.value_heads),
             size = static_cast<double>(shape.value_dim), keys = static_cast<double>(shape.key_heads * shape.key_dim);
  const double values = heads * size;
  return hidden * (2 * keys + 2 * values + 2 * heads) + static_cast<double>(shape.conv_kernel) * (2 * keys + values) +
         4 * heads * size * size + values * hidden;
}

std::unique_ptr<PartFootprint> make_footprint(const FootprintScope& scope, const DeltaNetShape& shape) {
  return std::make_unique<DeltaNetFootprint>(scope, shape);
}

}  // namespace megalith::nn
