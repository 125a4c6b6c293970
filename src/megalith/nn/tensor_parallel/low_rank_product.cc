// A product with a low-rank update beside it: y = base(x) + s (x' Aᵀ) Bᵀ, where x' is x after dropout. Wraps any other
// Product. The dropout mask is kept, since backward needs it for dA and for dx.
//
//   backward    dh = s dy B [t, m r];   dx = base + (dh A) ∘ mask;   dA = dhᵀ (x ∘ mask);   dB = s dyᵀ h
//
// Everything goes by way of tensors of m r columns, so that neither B A nor its gradient, [o, i] each, ever exists.
#include <ATen/ATen.h>

#include "megalith/nn/tensor_parallel/product_internal.h"

namespace megalith::nn {

namespace {

// Saved::own holds that of the base, then hidden [t, m r] and the mask of the input of A (undefined without dropout).
class LowRankProduct final : public Product {
 public:
  LowRankProduct(ProductPtr base, const LowRank& update, std::shared_ptr<const LowRankFactors> factors,
                 ProductInput input)
      : base_(std::move(base)), update_(update), factors_(std::move(factors)), input_(std::move(input)) {}

  std::vector<at::Tensor> weights() const override {
    std::vector<at::Tensor> all = base_->weights();
    all.insert(all.end(), {update_.a->value, update_.b->value});
    return all;
  }

  at::Tensor forward(const at::Tensor& x, const ops::Addends& added, Saved& saved) const override {
    at::Tensor y = base_->forward(x, added, saved);
    const at::Tensor mask = update_.dropout_mask(x, input_.split);
    const at::Tensor hidden = factors_->hidden(masked(x, mask));
    factors_->add_output(hidden, y);
    if (update_.a->value.requires_grad()) saved.x = x;
    saved.own.insert(saved.own.end(), {hidden, own_rows(mask)});
    return y;
  }

  OutputGrad output_grad(const at::Tensor& dy) const override {
    OutputGrad grad = base_->output_grad(dy);
    grad.hidden = factors_->hidden_grad(dy);
    return grad;
  }

  at::Tensor grad_through_weight(const OutputGrad& dy, const Saved& saved) const override {
    return base_->grad_through_weight(dy, saved);
  }

  void add_grad_through_update(const OutputGrad& dy, const Saved& saved, const at::Tensor& dx) const override {
    factors_->add_input_grad(dy.hidden, mask_of(saved), dx);
  }

  std::vector<at::Tensor> grad_weights(const OutputGrad& dy, const Saved& saved,
                                       const MakeInput& make_x) const override {
    std::vector<at::Tensor> grads = base_->grad_weights(dy, saved, make_x);
    const std::vector<at::Tensor> own =
        factor_grads(update_, factors_, dy, hidden_of(saved), mask_of(saved), saved, make_x);
    grads.insert(grads.end(), own.begin(), own.end());
    return grads;
  }

 private:
  static const at::Tensor& hidden_of(const Saved& saved) { return saved.own[saved.own.size() - 2]; }
  static const at::Tensor& mask_of(const Saved& saved) { return saved.own.back(); }

  // Returns the rows of a mask of all tokens that backward needs.
  at::Tensor own_rows(const at::Tensor& mask) const {
    if (!mask.defined() || !input_.shard) return mask;
    return mask.narrow(0, input_.shard->first, input_.shard->second).clone();
  }

  const ProductPtr base_;
  const LowRank& update_;
  const std::shared_ptr<const LowRankFactors> factors_;
  const ProductInput input_;
};

}  // namespace

std::vector<at::Tensor> factor_grads(const LowRank& update, const std::shared_ptr<const LowRankFactors>& factors,
                                     const OutputGrad& dy, const at::Tensor& hidden, const at::Tensor& mask,
                                     const Saved& saved, const MakeInput& make_x) {
  at::Tensor a, b;
  if (update.b->value.requires_grad())
    b = update.b->grad.now_or_later([factors, dy = dy.dy, hidden] { return factors->b_grad(dy, hidden); });
  if (update.a->value.requires_grad()) {
    // x must have the tokens of dy.hidden. A layer that gathers x has reduced dy.hidden to its own tokens: these are
    // the rows of saved.x, while make_x returns all tokens.
    const MakeInput x = input_of(saved, saved.x.defined() ? MakeInput() : make_x, *update.a);
    a = update.a->grad.now_or_later(
        [factors, hidden_grad = dy.hidden, x, mask] { return factors->a_grad(hidden_grad, masked(x(), mask)); });
  }
  return {a, b};
}

ProductPtr low_rank_product(ProductPtr base, const LowRank& update, std::shared_ptr<const LowRankFactors> factors,
                            const ProductInput& input) {
  return std::make_shared<LowRankProduct>(std::move(base), update, std::move(factors), input);
}

}  // namespace megalith::nn
