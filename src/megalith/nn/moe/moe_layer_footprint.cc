// Memory and work of a MoeLayer: router, experts, shared experts. Mirrors moe_layer.cc and router.cc.
#include "megalith/nn/footprint/part_footprint.h"
#include "megalith/nn/moe/experts_footprint.h"
#include "megalith/nn/moe/moe_layer.h"

namespace megalith::nn {

namespace {

// Router::forward and choose_experts: logits and scores [s, E], choices and weights [s, k].
class RouterFootprint {
 public:
  RouterFootprint(const FootprintScope& scope, const RouterShape& shape, int64_t hidden)
      : rank_(scope.rank()), shape_(shape) {
    scope.add({.numel = shape.experts * hidden, .matrices = MatrixWork::of_rows(shape.experts, hidden, /*ranks=*/1)},
              "router.weight");
    if (shape.expert_bias) scope.add({.numel = shape.experts, .buffer = true, .trained = false});
  }

  void forward(LayerWalk& walk, bool keep) const {
    walk.take(kept());
    walk.touch(rank_.s * experts() * 16, Use::kWorkspace);
    if (!keep) walk.give(kept());
  }

  void backward(LayerWalk& walk) const {
    const double wide = widens() ? 4 : rank_.bytes;
    const double copies = wide + (wide == rank_.bytes ? 0 : rank_.bytes);
    walk.touch(rank_.s * (experts() * 12 + rank_.h * copies), Use::kWorkspace);
    walk.give(kept());
  }

  void work(WorkMeter& meter) const {
    meter.product(rank_.s, experts(), rank_.h);
    meter.launches(30);  // a few dozen small operations
  }

 private:
  double experts() const { return static_cast<double>(shape_.experts); }
  // Whether the input is converted to another dtype for the router.
  bool widens() const { return shape_.dtype && *shape_.dtype != rank_.dtype; }
  // Returns the bytes kept: scores over all experts in fp32 (one tensor for the weights, one for the losses), 20 bytes
  // per choice, and a converted input.
  double kept() const {
    const bool scores_all = shape_.pre_softmax || shape_.score == ScoreFunction::kSigmoid;
    const double scores = 4 * ((scores_all ? 1 : 0) + (shape_.losses.empty() ? 0 : 1));
    const double input = widens() ? rank_.h * (*shape_.dtype == at::kDouble ? 8 : 4) : 0;
    return rank_.s * (experts() * scores + static_cast<double>(shape_.topk) * 20 + input);
  }

  const RankSizes& rank_;
  RouterShape shape_;
};

class MoeLayerFootprint : public PartFootprint {
 public:
  MoeLayerFootprint(const FootprintScope& scope, const MoeShape& shape, const MoeOptions& options)
      : rank_(scope.rank()),
        recomputes_shared_(options.recompute_shared),
        router_(scope, shape.router, shape.hidden),
        experts_(scope.child("experts"), shape, options) {
    if (shape.shared_width == 0) return;
    shared_ = make_footprint(scope.child("shared"), shared_shape(shape), /*shares_input=*/true);
    if (shape.shared_gate)
      scope.add({.numel = shape.hidden, .matrices = MatrixWork::of_rows(1, shape.hidden, /*ranks=*/1)},
                "shared_gate.weight");
  }

  void forward(LayerWalk& walk, bool keep) const override {
    router_.forward(walk, keep);
    if (shared_) shared_->forward(walk, keep && !recomputes_shared_);
    experts_.forward(walk, keep);
    if (shared_) walk.give(rank_.stream());  // residual + shared experts, which the sum has read
    if (keep && !keeps_input()) walk.give(rank_.stream());
  }

  // Experts, shared experts and router all read the norm's output: it is freed with the last of them, and their
  // gradients are summed into one.
  void backward(LayerWalk& walk, bool wanted) const override {
    experts_.backward(walk, wanted);
    if (shared_ && recomputes_shared_) {
      shared_->forward(walk, /*keep=*/true);
      walk.give(rank_.stream());
    }
    if (shared_) shared_->backward(walk, wanted);
    router_.backward(walk);
    if (keeps_input()) walk.give(rank_.stream());
  }

  void work(WorkMeter& meter) const override {
    experts_.work(meter);
    router_.work(meter);
    if (shared_) meter.part(*shared_);
  }

  // A frozen router does not read the input, and updates of experts read the rows copied from it.
  bool keeps_input() const override { return !rank_.frozen || rank_.discards_norms || shared_; }

 private:
  const RankSizes& rank_;
  bool recomputes_shared_;
  RouterFootprint router_;
  ExpertsFootprint experts_;
  std::unique_ptr<PartFootprint> shared_;
};

}  // namespace

std::unique_ptr<PartFootprint> make_footprint(const FootprintScope& scope, const MoeShape& shape,
                                              const MoeOptions& options) {
  return std::make_unique<MoeLayerFootprint>(scope, shape, options);
}

}  // namespace megalith::nn
