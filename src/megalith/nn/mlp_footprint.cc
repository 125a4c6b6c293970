// Memory and work of an Mlp. Mirrors mlp.cc: `before` is the output of the up projection [t, 2f/tp] (or f/tp), `after`
// that of the activation [t, f/tp].
//
//   kept for backward     input (by up), before (by the activation), after (by down)
//   recomputed            after, if shape.recompute_activation is set, and for a plain activation on the CPU
#include "megalith/nn/footprint/part_footprint.h"
#include "megalith/nn/mlp.h"
#include "megalith/nn/tensor_parallel/linear_footprint.h"

namespace megalith::nn {

namespace {

class MlpFootprint : public PartFootprint {
 public:
  MlpFootprint(const FootprintScope& scope, const MlpShape& shape, bool shares_input)
      : rank_(scope.rank()),
        shares_input_(shares_input),
        remakes_activation_(shape.recompute_activation || (!shape.gated && !rank_.machinery.cuda)),
        up_(scope, shape.hidden, up_parts(shape), shape.bias),
        down_(scope, "down", shape.width, shape.hidden, shape.bias) {}

  void forward(LayerWalk& walk, bool keep) const override {
    const double b = rank_.t * rank_.bytes;
    up_.forward(walk, keep);
    if (keep && !shares_input_ && !keeps_input() && !rank_.discards_norms) walk.give(rank_.stream());
    walk.take(b * down_.in());
    down_.forward(walk, keep);
    // Mlp::forward drops its own reference to `after`; down keeps one only if backward reads it.
    if (!keep || remakes_activation_ || !down_.keeps_input(rank_)) walk.give(b * down_.in());
    if (!keep) walk.give(b * up_.out());
  }

  void backward(LayerWalk& walk, bool wanted) const override {
    const double before = rank_.t * rank_.bytes * up_.out(), after = rank_.t * rank_.bytes * down_.in();
    const bool reads = down_.keeps_input(rank_);
    down_.backward(walk, {.give = !remakes_activation_ && reads,
                          .made_again = remakes_activation_ && reads ? after : 0,
                          .in_slices = up_.multiplies_slices(rank_) && down_.multiplies_slices(rank_)});
    walk.take(before);  // its gradient, for which that of `after` is then dropped
    walk.give(after);
    if (remakes_activation_)
      walk.leave_to_graph(before);  // held by the function that recomputes the activation
    else
      walk.give(before);
    up_.backward(walk, wanted);
  }

  void work(WorkMeter& meter) const override {
    const double before = rank_.t * rank_.bytes * up_.out(), after = rank_.t * rank_.bytes * down_.in();
    meter.branch(up_.out(), down_.in());
    meter.moves(before + after, 2 * before + after);
  }

  bool keeps_input() const override { return up_.keeps_input(rank_); }

 private:
  const RankSizes& rank_;
  bool shares_input_;
  bool remakes_activation_;  // recomputed for the weight gradient of the down projection
  ColumnFootprint up_;
  RowFootprint down_;
};

}  // namespace

std::unique_ptr<PartFootprint> make_footprint(const FootprintScope& scope, const MlpShape& shape, bool shares_input) {
  return std::make_unique<MlpFootprint>(scope, shape, shares_input);
}

}  // namespace megalith::nn
