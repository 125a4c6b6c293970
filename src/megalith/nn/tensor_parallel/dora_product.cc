// A product with a weight-decomposed update (DoRA, arXiv:2402.09353): y = c ∘ u with u = x Wᵀ + s (x Aᵀ) Bᵀ, where c
// has one number per output: magnitude / norm of the row of W + s·B·A, and 1 for outputs without an update. The norm is
// a constant in backward, as in section 4.3 of the paper and in peft. Bias and residual are added afterwards, unscaled.
//
//   backward    du = c ∘ dy;   dh = s du B;   dx = du W + dh A;   dA = dhᵀ x;   dB = s duᵀ h;   dm = Σ_t dy ∘ u / norm
//
// With dropout peft multiplies W by x and (c - 1) W by x' after dropout: y = (x - x') Wᵀ + c ∘ (x' Wᵀ + s (x' Aᵀ) Bᵀ).
//
// In row layers u is a partial sum over the ranks. c is the same on all of them, since norms are summed over the ranks;
// so c ∘ u are partial sums, too, and so is dm.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>

#include "megalith/base/error.h"
#include "megalith/nn/parameter/dora.h"
#include "megalith/nn/parameter/gradient_writer.h"
#include "megalith/nn/tensor_parallel/product_internal.h"

namespace megalith::nn {

namespace {

// Norms by which rows can be divided: those of padding are zero, and so are their magnitudes.
at::Tensor divisors(const Parameter& weight, const LowRank& update) {
  return updated_norms(weight, update).clamp_min_(std::numeric_limits<float>::min());
}

// Returns c, fp32 [o]; `norms` [Σ rows] has the order of the magnitudes.
at::Tensor scales(const Parameter& weight, const LowRank& update, const at::Tensor& norms) {
  const at::NoGradGuard no_grad;
  const at::Tensor quotients = update.magnitude->value.detach() / norms;
  at::Tensor c = at::ones({weight.value.size(0)}, norms.options());
  for (const LowRank::Part& part : update.parts)
    c.narrow(0, part.out, part.rows).copy_(quotients.narrow(0, part.b, part.rows));
  return c;
}

// Σ_t dy ∘ u / norm for each part, summed in fp32.
at::Tensor magnitude_grad(const LowRank& update, const at::Tensor& dy, const at::Tensor& u, const at::Tensor& norms) {
  const GradientWriter grad(*update.magnitude);
  for (const LowRank::Part& part : update.parts) {
    const at::Tensor products = dy.narrow(1, part.out, part.rows).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    const at::Tensor sum =
        products.mul_(u.narrow(1, part.out, part.rows)).sum(0).div_(norms.narrow(0, part.b, part.rows));
    const at::Tensor into = grad.into().narrow(0, part.b, part.rows);
    if (grad.beta() == 0)
      into.copy_(sum);
    else
      into.add_(sum);
  }
  return grad.done();
}

// Saved::own holds that of the base, then hidden [t, m r], the mask of the input of A (undefined without dropout; for
// all tokens, since both products with W need it) and u [t, o].
class DoraProduct final : public Product {
 public:
  DoraProduct(const Parameter& weight, ProductPtr base, const LowRank& update,
              std::shared_ptr<const LowRankFactors> factors, ProductInput input)
      : base_(std::move(base)),
        update_(update),
        factors_(std::move(factors)),
        input_(input),
        norms_(divisors(weight, update)),
        scales_(scales(weight, update, norms_)) {
    check(!weight.value.requires_grad(), "{} has magnitudes, but is trained itself", weight.spec.name);
  }

  std::vector<at::Tensor> weights() const override {
    std::vector<at::Tensor> all = base_->weights();
    all.insert(all.end(), {update_.a->value, update_.b->value, update_.magnitude->value});
    return all;
  }

  at::Tensor forward(const at::Tensor& x, const ops::Addends& added, Saved& saved) const override {
    const at::Tensor mask = update_.dropout_mask(x, input_.split), in = masked(x, mask);
    const at::Tensor u = base_->forward(in, {}, saved);
    const at::Tensor hidden = factors_->hidden(in);
    factors_->add_output(hidden, u);
    const at::Tensor y = scaled(u);
    if (mask.defined()) {
      Saved same;
      y.add_(base_->forward(x - in, {}, same));
    }
    add_addends_(y, added);
    if (update_.a->value.requires_grad()) saved.x = x;
    saved.own.insert(saved.own.end(), {hidden, mask, u});
    return y;
  }

  OutputGrad output_grad(const at::Tensor& dy) const override {
    OutputGrad grad = base_->output_grad(dy);
    grad.scaled = scaled(dy);
    grad.hidden = factors_->hidden_grad(grad.scaled);
    return grad;
  }

  at::Tensor grad_through_weight(const OutputGrad& dy, const Saved& saved) const override {
    const at::Tensor& mask = mask_of(saved);
    if (!mask.defined()) return base_->grad_through_weight({.dy = dy.scaled}, saved);
    const at::Tensor dx = base_->grad_through_weight({.dy = dy.dy}, saved);
    add_masked(dx, base_->grad_through_weight({.dy = dy.scaled - dy.dy}, saved), mask);
    return dx;
  }

  void add_grad_through_update(const OutputGrad& dy, const Saved& saved, const at::Tensor& dx) const override {
    factors_->add_input_grad(dy.hidden, own_rows(mask_of(saved)), dx);
  }

  std::vector<at::Tensor> grad_weights(const OutputGrad& dy, const Saved& saved,
                                       const MakeInput& make_x) const override {
    std::vector<at::Tensor> grads(base_->weights().size());  // W is frozen
    const std::vector<at::Tensor> factors = factor_grads(update_, factors_, {.dy = dy.scaled, .hidden = dy.hidden},
                                                         hidden_of(saved), own_rows(mask_of(saved)), saved, make_x);
    grads.insert(grads.end(), factors.begin(), factors.end());
    at::Tensor magnitude;
    if (update_.magnitude->value.requires_grad())
      magnitude =
          update_.magnitude->grad.now_or_later([&update = update_, dy = dy.dy, u = saved.own.back(), norms = norms_] {
            return magnitude_grad(update, dy, u, norms);
          });
    grads.push_back(magnitude);
    return grads;
  }

 private:
  static const at::Tensor& hidden_of(const Saved& saved) { return saved.own[saved.own.size() - 3]; }
  static const at::Tensor& mask_of(const Saved& saved) { return saved.own[saved.own.size() - 2]; }

  // Returns c ∘ values in their dtype; the product is rounded, and c is not.
  at::Tensor scaled(const at::Tensor& values) const {
    at::Tensor result = at::empty_like(values);
    at::mul_out(result, values, scales_);
    return result;
  }

  // Returns the rows of a mask of all tokens that A's gradient and its part of dx need.
  at::Tensor own_rows(const at::Tensor& mask) const {
    if (!mask.defined() || !input_.shard) return mask;
    return mask.narrow(0, input_.shard->first, input_.shard->second);
  }

  const ProductPtr base_;
  const LowRank& update_;
  const std::shared_ptr<const LowRankFactors> factors_;
  const ProductInput input_;
  const at::Tensor norms_, scales_;  // [Σ rows], [o]
};

}  // namespace

ProductPtr dora_product(const Parameter& weight, ProductPtr base, const LowRank& update,
                        std::shared_ptr<const LowRankFactors> factors, const ProductInput& input) {
  return std::make_shared<DoraProduct>(weight, std::move(base), update, std::move(factors), input);
}

}  // namespace megalith::nn
