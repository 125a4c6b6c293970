// The plain product, in the dtype of its tensors: y = x Wᵀ, dx = dy W, dW = dyᵀ x, one gemm each. It is the only kind
// that can be computed by blocks of rows.
#include <ATen/ATen.h>

#include <memory>

#include "megalith/nn/parameter/weight_grad_queue.h"
#include "megalith/nn/tensor_parallel/product_internal.h"
#include "megalith/ops/gemm/block_gemm.h"

namespace megalith::nn {

namespace {

// The weight gradient captures dy and x by value: a deferred one keeps them alive until its turn.
class DenseProduct final : public Product {
 public:
  explicit DenseProduct(Parameter& weight) : weight_(weight) {}

  std::vector<at::Tensor> weights() const override { return {weight_.value}; }

  at::Tensor forward(const at::Tensor& x, const ops::Addends& added, Saved& saved) const override {
    save_for_blocks(x, saved);
    return ops::gemm(x, weight_.value.t(), added, weight_.kernels());
  }

  at::Tensor grad_through_weight(const OutputGrad& dy, const Saved& saved) const override {
    return ops::gemm(dy.dy, saved.own[0], {}, weight_.kernels());
  }

  std::vector<at::Tensor> grad_weights(const OutputGrad& dy, const Saved& saved,
                                       const MakeInput& make_x) const override {
    if (!weight_.value.requires_grad()) return {at::Tensor()};
    if (held_in_halves()) {
      hold_halves(dy.dy, input_of(saved, make_x, weight_));
      return {at::Tensor()};
    }
    return {weight_.grad.now_or_later([&weight = weight_, dy = dy.dy, x = input_of(saved, make_x, weight_)] {
      return weight.add_weight_grad(dy, x());
    })};
  }

  bool by_blocks() const override { return true; }

  void save_for_blocks(const at::Tensor& x, Saved& saved) const override {
    if (weight_.value.requires_grad()) saved.x = x;  // a frozen weight needs no input
    saved.own = {weight_.value};                     // autograd then notices if the weight changes between the passes
  }

  void multiply_blocks(const at::Tensor& y, const at::Tensor& x) const override {
    ops::block_gemm_out(y, x, weight_.value.t(), weight_.kernels());
  }

  void multiply_grad_blocks(const at::Tensor& dx, const at::Tensor& dy, const Saved& saved) const override {
    ops::block_gemm_out(dx, dy, saved.own[0], weight_.kernels());
  }

 private:
  // Whether the weight gradient waits for collectives and is enough for several of them.
  bool held_in_halves() const {
    const GradientSlot& grad = weight_.grad;
    return grad.queue != nullptr && grad.queue->holding() && grad.main_grad.defined() &&
           static_cast<double>(weight_.value.numel()) >= 4 * grad.queue->unit();
  }

  // Holds the upper and the lower rows of dW as two jobs. The first of a step, which overwrites, computes both: the
  // mark of a stale gradient is that of all rows.
  void hold_halves(const at::Tensor& dy, const MakeInput& make_x) const {
    const int64_t rows = weight_.value.size(0), upper = rows / 2;
    const double work = static_cast<double>(weight_.value.numel()) / 2;
    // x is made for the first half, and kept for the second.
    const auto x = std::make_shared<at::Tensor>();
    const auto add = [&weight = weight_, dy, x](int64_t first, int64_t count, double beta) {
      ops::add_gemm(weight.grad.main_grad.narrow(0, first, count), dy.narrow(1, first, count).t(), *x, beta,
                    /*alpha=*/1, weight.kernels());
    };
    weight_.grad.queue->hold(work, [&weight = weight_, x, make_x, add, rows, upper] {
      *x = make_x();
      add(0, upper, weight.grad.stale ? 0 : 1);
      if (!weight.grad.stale) return;
      add(upper, rows - upper, 0);
      weight.grad.stale = false;
      x->reset();
    });
    weight_.grad.queue->hold(work, [x, add, rows, upper] {
      if (x->defined()) add(upper, rows - upper, 1);
    });
  }

  Parameter& weight_;
};

}  // namespace

ProductPtr dense_product(Parameter& weight) { return std::make_shared<DenseProduct>(weight); }

}  // namespace megalith::nn
