// The loss E/(k T²) Σ_e P_e C_e, with P_e the sum of scores and C_e the number of choices of expert e over T tokens, is
// smallest for an even load (Switch Transformer, arXiv:2101.03961, equation 4).
// Counts are not differentiable: they are summed over the ranks without autograd, and the gradient flows through P_e.
#include "megalith/nn/moe/balance.h"

#include <ATen/ATen.h>

#include "megalith/nn/moe/routing.h"
#include "megalith/ops/kernel/autograd_state.h"

namespace megalith::nn {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace {

// Identity on x. Its backward starts a second gradient, `scale`, at `loss`.
struct AttachLoss : Function<AttachLoss> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& loss, double scale) {
    ctx->save_for_backward({loss});
    ctx->saved_data["scale"] = scale;
    return x.alias();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor loss = ctx->get_saved_variables()[0];
    return {grads[0], at::full_like(loss, ctx->saved_data["scale"].toDouble()), {}};
  }
};

// Zeroes the rows of tokens that do not count.
at::Tensor without_padding(const at::Tensor& x, const at::Tensor& valid) {
  return valid.defined() ? x * valid.to(x.scalar_type()).unsqueeze(1) : x;
}

// Sums over the tokens of each sequence: [t, n] -> [s, n].
at::Tensor by_sequence(const at::Tensor& x, const BalanceScope& scope) {
  if (!scope.sequence.defined()) return x.sum(0, /*keepdim=*/true);
  return at::zeros({scope.sequences, x.size(1)}, x.options()).index_add(0, scope.sequence, x);
}

}  // namespace

at::Tensor attach_loss(const at::Tensor& x, const at::Tensor& loss, double scale) {
  return AttachLoss::apply(x, loss, scale);
}

BalanceCounts count_choices(const at::Tensor& scores, const RouterShape& router, const BalanceScope& scope) {
  const at::NoGradGuard no_grad;
  at::Tensor choices = balance_counts(scores, router.topk);
  choices = at::cat({choices, at::ones({choices.size(0), 1}, choices.options())}, 1);  // last column counts tokens
  const at::Tensor all = by_sequence(without_padding(choices, scope.valid), scope).contiguous();
  scope.group.all_reduce(all, comm::ReduceOp::kSum, "choices of experts");
  return {all.narrow(1, 0, router.experts), all.select(1, router.experts)};
}

at::Tensor balance_loss(const at::Tensor& scores, const BalanceCounts& counts, const RouterShape& router,
                        const BalanceScope& scope) {
  const at::Tensor sums = by_sequence(without_padding(scores, scope.valid), scope);  // [s, E]
  const double factor = static_cast<double>(router.experts) / static_cast<double>(router.topk);
  const at::Tensor square = counts.tokens.mean().square().clamp_min(1);  // T²; 1 for a micro-batch without tokens
  return (sums * counts.choices).sum(1).mean() / square * factor;
}

at::Tensor z_loss(const at::Tensor& logits, const at::Tensor& valid) {
  const at::Tensor wide = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
  const at::Tensor squares = wide.logsumexp(-1).square();
  if (!valid.defined()) return squares.size(0) == 0 ? squares.sum() : squares.mean();
  return (squares * valid.to(squares.scalar_type())).sum() / valid.sum().clamp_min(1);
}

// DeepSeek-V3's balancing without a loss (arXiv:2412.19437): experts above the mean load become less likely.
at::Tensor updated_bias(const at::Tensor& bias, const at::Tensor& load, double rate) {
  return bias + (load.mean() - load).sign() * rate;
}

}  // namespace megalith::nn
