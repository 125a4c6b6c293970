// Low-rank updates of one matrix. The update is never added to the weight: y gets s · (x Aᵀ) Bᵀ by way of the narrow
// tensor hidden [t, m r], which costs about r (i + o) multiplications per token beside the i · o of the weight. Parts
// write to their own columns of y in place.
#include "megalith/nn/parameter/low_rank.h"

#include <ATen/ATen.h>

#include "megalith/nn/parameter/gradient_writer.h"
#include "megalith/ops/gemm/gemm.h"

namespace megalith::nn {

namespace {

// Returns A or B in the dtype of `like`, without autograd history.
at::Tensor factor(const Parameter& parameter, const at::Tensor& like) {
  return parameter.value.detach().to(like.scalar_type());
}

// Factors of one matrix (GroupedFactors in moe/grouped_product.cc has one per expert). For q | k | v with updates of q
// and v: A stacks two modules, hidden = [x A_qᵀ | x A_vᵀ], and each part adds to its own columns of y.
class MatrixFactors final : public LowRankFactors {
 public:
  explicit MatrixFactors(const LowRank& update) : update_(update) {}

  at::Tensor hidden(const at::Tensor& x) const override { return x.mm(factor(*update_.a, x).t()); }

  void add_output(const at::Tensor& hidden, const at::Tensor& y) const override {
    const at::Tensor b = factor(*update_.b, y);
    for (const LowRank::Part& part : update_.parts)
      y.narrow(1, part.out, part.rows)
          .addmm_(hidden.narrow(1, part.a, update_.rank), b.narrow(0, part.b, part.rows).t(), 1, part.scale);
  }

  at::Tensor hidden_grad(const at::Tensor& dy) const override {
    const at::Tensor b = factor(*update_.b, dy);
    at::Tensor grad = at::empty({dy.size(0), update_.parts.back().a + update_.rank}, dy.options());
    for (size_t i = 0; i < update_.parts.size(); ++i) {
      const LowRank::Part& part = update_.parts[i];
      // The first part of a module overwrites (beta 0), the others add.
      ops::add_gemm(grad.narrow(1, part.a, update_.rank), dy.narrow(1, part.out, part.rows),
                    b.narrow(0, part.b, part.rows), update_.opens_module(i) ? 0 : 1, part.scale, update_.b->kernels());
    }
    return grad;
  }

  void add_input_grad(const at::Tensor& hidden_grad, const at::Tensor& mask, const at::Tensor& dx) const override {
    const at::Tensor a = factor(*update_.a, hidden_grad);
    if (mask.defined())
      add_masked(dx, hidden_grad.mm(a), mask);
    else
      dx.addmm_(hidden_grad, a);
  }

  at::Tensor a_grad(const at::Tensor& hidden_grad, const at::Tensor& in) const override {
    return update_.a->add_weight_grad(hidden_grad, in);
  }

  at::Tensor b_grad(const at::Tensor& dy, const at::Tensor& hidden) const override {
    const GradientWriter grad(*update_.b);
    for (const LowRank::Part& part : update_.parts)
      ops::add_gemm(grad.into().narrow(0, part.b, part.rows), dy.narrow(1, part.out, part.rows).t(),
                    hidden.narrow(1, part.a, update_.rank), grad.beta(), part.scale, update_.b->kernels());
    return grad.done();
  }

 private:
  const LowRank& update_;
};

}  // namespace

// Scaled by 1 / (1 - p) already, so that one multiplication applies it. Ranks that hold the same x draw the same mask;
// those with different columns or tokens fork the random stream.
at::Tensor LowRank::dropout_mask(const at::Tensor& x, bool split) const {
  if (dropout == 0 || !state->training) return {};
  const auto fork = rng->fork_if(split);
  return at::empty_like(x).bernoulli_(1 - dropout, rng->generator()).mul_(1 / (1 - dropout));
}

at::Tensor masked(const at::Tensor& x, const at::Tensor& mask) { return mask.defined() ? x.mul(mask) : x; }

void add_masked(const at::Tensor& dx, const at::Tensor& grad, const at::Tensor& mask) {
  if (mask.defined())
    dx.addcmul_(grad, mask);
  else
    dx.add_(grad);
}

// A tied embedding is looked up in the first stage and multiplied in the head; its update belongs to the lookup.
const LowRank* active_update(const Parameter& weight, bool lookup) {
  const LowRank* update = weight.attached.update;
  if (update == nullptr || !update->state->active || lookup != (weight.spec.use == WeightUse::kLookup)) return nullptr;
  return update;
}

std::unique_ptr<LowRankFactors> low_rank_factors(const LowRank& update) {
  return std::make_unique<MatrixFactors>(update);
}

at::Tensor with_low_rank(const at::Tensor& y, const at::Tensor& x, const Parameter& weight, bool split) {
  const LowRank* update = active_update(weight);
  if (update == nullptr) return y;
  const at::Tensor a = update->a->value.to(x.scalar_type()), b = update->b->value.to(y.scalar_type());
  const at::Tensor h = masked(x, update->dropout_mask(x, split)).mm(a.t()).to(y.scalar_type());
  return at::addmm(y, h, b.t(), 1, update->parts[0].scale);
}

}  // namespace megalith::nn
