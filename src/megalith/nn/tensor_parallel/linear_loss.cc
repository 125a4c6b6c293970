// The logits [t, v/tp] of a large vocabulary are by far the largest tensor of a model, and the loss needs each of them
// only once. The gradient of every loss is known beforehand, so a slice of logits is overwritten by its own gradient,
// from which dx and dW follow at once: neither logits nor a second projection are left for backward.
//
//   slice of c tokens   logits y = x Wᵀ [c, v/tp] ─► loss [c], y overwritten by dy ─► dx = dy W,  dW += dyᵀ x
//
// Collectives over tp, in the same order on all ranks: with sequence parallelism one all-gather of x; per slice those
// of the loss; at the end one reduction of dx for all slices, since reducing each slice would send the same bytes in
// smaller messages.
#include "megalith/nn/tensor_parallel/linear_loss.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/nn/parameter/low_rank.h"
#include "megalith/nn/tensor_parallel/head_products_internal.h"
#include "megalith/nn/tensor_parallel/linear_function.h"
#include "megalith/nn/tensor_parallel/mappings.h"
#include "megalith/ops/kernel/autograd_state.h"

namespace megalith::nn {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace {

// Gradients that forward has made for backward.
struct MadeGrads {
  at::Tensor dx, dw;
  double grad = 0;
};

// On CUDA the check would make the host wait.
void check_announced(const at::Tensor& arrived, double announced) {
  if (!arrived.is_cpu() || arrived.numel() == 0) return;
  check(arrived.sub(announced).abs_().max().item<double>() <= 1e-6 * std::abs(announced),
        "the gradient of the loss was announced as {}, but is {}", announced, arrived[0].item<double>());
}

// Runs all slices. Returns the losses [t]; `made` gets the gradients that are wanted.
at::Tensor run_slices(const at::Tensor& hidden, const LinearLoss& how, const SliceLoss& loss,
                      HeadProducts::Wanted wanted, MadeGrads& made) {
  const at::Tensor all_hidden =
      how.tp.splits_tokens() ? all_gather_rows(hidden, how.tp.group, "loss input") : hidden;  // [t, h]
  const int64_t tokens = all_hidden.size(0);
  const bool wants_grad = wanted.input_grad || wanted.weight_grad;
  at::Tensor losses = at::empty({tokens}, all_hidden.options().dtype(at::kFloat));
  if (wanted.input_grad) made.dx = at::empty_like(all_hidden);
  std::optional<HeadProducts> head(std::in_place, *how.weight, how.fp8, wanted);
  for (int64_t first = 0; first < tokens; first += how.chunk) {
    const int64_t count = std::min(how.chunk, tokens - first);
    const at::Tensor logits = head->logits(all_hidden.narrow(0, first, count));
    losses.narrow(0, first, count).copy_(loss(logits, first, wants_grad));
    if (!wants_grad) continue;
    head->start_backward(how.largest);
    if (wanted.input_grad) head->grad_input(made.dx.narrow(0, first, count));
    if (!wanted.weight_grad) continue;
    const at::Tensor part = head->add_weight_grad();
    if (part.defined()) made.dw = made.dw.defined() ? made.dw.add_(part) : part;
  }
  head.reset();
  if (made.dx.defined()) made.dx = reduce_head_grad(made.dx, how.tp);
  return losses;
}

// Computes the gradients in forward, because the gradient that backward will bring is known.
struct LinearLossFunction : Function<LinearLossFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& weight,
                            const LinearLoss& how, const SliceLoss& loss) {
    MadeGrads made{.grad = how.grad};
    at::Tensor losses = run_slices(hidden, how, loss, {hidden.requires_grad(), weight.requires_grad()}, made);
    ops::save_state(ctx, std::move(made));
    return losses;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const MadeGrads made = std::exchange(ops::saved_state<MadeGrads>(ctx), {});
    check(made.dx.defined() || made.dw.defined() || made.grad != 0, "backward ran through a loss a second time");
    check_announced(grads[0], made.grad);
    return {made.dx, made.dw, {}, {}};
  }
};

// Computes the losses slice by slice from logits [t, v/tp], which are overwritten with `wants_grad`.
at::Tensor losses_of_logits(const at::Tensor& logits, int64_t chunk, const SliceLoss& loss, bool wants_grad) {
  at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  for (int64_t first = 0; first < logits.size(0); first += chunk) {
    const int64_t count = std::min(chunk, logits.size(0) - first);
    losses.narrow(0, first, count).copy_(loss(logits.narrow(0, first, count), first, wants_grad));
  }
  return losses;
}

// The same for logits that exist: nothing else reads them, so their memory becomes that of their gradient.
struct LogitLossFunction : Function<LogitLossFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const LinearLoss& how,
                            const SliceLoss& loss) {
    const at::Tensor mine = logits.detach();
    at::Tensor losses = losses_of_logits(mine, how.chunk, loss, /*wants_grad=*/true);
    ops::save_state(ctx, MadeGrads{.dx = mine, .dw = {}, .grad = how.grad});
    return losses;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const MadeGrads made = std::exchange(ops::saved_state<MadeGrads>(ctx), {});
    check(made.dx.defined(), "backward ran through a loss a second time");
    check_announced(grads[0], made.grad);
    return {made.dx, {}, {}};
  }
};

}  // namespace

at::Tensor linear_loss(const at::Tensor& hidden, const LinearLoss& how, const SliceLoss& loss) {
  check(how.chunk > 0, "the loss needs a chunk of at least one token, not {}", how.chunk);
  const bool trains = at::GradMode::is_enabled();
  if (active_update(*how.weight)) {
    const at::Tensor logits = column_linear(hidden, *how.weight, nullptr, how.tp).contiguous();
    if (trains && logits.requires_grad()) return LogitLossFunction::apply(logits, how, loss);
    return losses_of_logits(logits.detach(), how.chunk, loss, /*wants_grad=*/false);
  }
  if (trains) return LinearLossFunction::apply(hidden, how.weight->value, how, loss);
  MadeGrads none;
  return run_slices(hidden, how, loss, {}, none);
}

}  // namespace megalith::nn
