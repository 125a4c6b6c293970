// Memory and work of GatedDeltaNet. The layer consists of many small operations, so that the bytes they keep are an
// estimate.
#include "megalith/nn/attention/gated_delta_net.h"
#include "megalith/nn/footprint/part_footprint.h"
#include "megalith/nn/norm_footprint.h"
#include "megalith/nn/tensor_parallel/linear_footprint.h"

namespace megalith::nn {

namespace {

// The constructor adds parameters in the order of GatedDeltaNet's: in, conv, a_log, dt_bias, norm, out.
class DeltaNetFootprint : public PartFootprint {
 public:
  DeltaNetFootprint(const FootprintScope& scope, const DeltaNetShape& shape)
      : rank_(scope.rank()),
        keys_(on_rank(shape.key_heads * shape.key_dim)),
        values_(on_rank(shape.value_heads * shape.value_dim)),
        spread_(on_rank(shape.value_heads * shape.key_dim)) {
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
    walk.take(held());
    walk.sum_over_ranks();
    if (!keep) walk.give(held());
  }

  void backward(LayerWalk& walk, bool /*wanted*/) const override {
    walk.touch(held() / 3, Use::kWorkspace);  // gradients of the operations in progress
    walk.give(held());
    walk.take(rank_.stream());
    walk.give(rank_.stream());  // the norm's output
    walk.take(rank_.stream());  // its gradient
  }

  void work(WorkMeter& meter) const override {
    const double bytes = 4 * rank_.t * (8 * keys_ + 12 * values_);
    meter.branch(2 * (keys_ + values_), values_);
    meter.moves(bytes, 3 * bytes);
  }

  bool counts_updates() const override { return false; }

 private:
  // Bytes of everything between the projections, in fp32.
  double held() const { return 4 * rank_.t * (3 * (2 * keys_ + values_) + 4 * keys_ + 4 * spread_ + 6 * values_); }

  double on_rank(int64_t channels) const { return static_cast<double>(channels) / static_cast<double>(rank_.tp); }

  const RankSizes& rank_;
  double keys_, values_;  // channels of this rank
  double spread_;         // channels of keys, repeated for each value head
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
