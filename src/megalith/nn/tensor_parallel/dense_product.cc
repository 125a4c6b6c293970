// The plain product, in the dtype of its tensors: y = x Wᵀ, dx = dy W, dW = dyᵀ x, one gemm each. It is the only kind
// that can be computed by blocks of rows.
#include <ATen/ATen.h>

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
  Parameter& weight_;
};

}  // namespace

ProductPtr dense_product(Parameter& weight) { return std::make_shared<DenseProduct>(weight); }

}  // namespace megalith::nn
