// The logits [t, v/tp] of a large vocabulary are by far the largest tensor of a model, and the loss needs each of them
// only once. So the projection and the loss run chunk by chunk of tokens, and a chunk of logits is overwritten by its
// own gradient, from which dx and dW follow at once.
//
//   LinearCrossEntropy            forward keeps log-sum-exp per token; backward recomputes the logits of each chunk
//   linear_loss (linear_loss.h)   the gradient of each loss is known beforehand: forward computes dx and dW, too
//
// The second one saves the second projection, one of four products.
//
//   chunk of c tokens   logits y = x Wᵀ [c, v/tp] ─► loss [c] ─► y overwritten by dy ─► dx = dy W,  dW += dyᵀ x
//
// Collectives over tp, in the same order on all ranks: with sequence parallelism one all-gather of x; per chunk the two
// small all-reduces of the loss; at the end one reduction of dx for all chunks, since reducing each chunk would send
// the same bytes in smaller messages.
#include "megalith/nn/tensor_parallel/linear_cross_entropy.h"

#include <ATen/ATen.h>

#include <utility>

#include "megalith/base/error.h"
#include "megalith/nn/tensor_parallel/head_products_internal.h"
#include "megalith/nn/tensor_parallel/linear_loss.h"
#include "megalith/nn/tensor_parallel/mappings.h"
#include "megalith/ops/kernel/autograd_state.h"

namespace megalith::nn {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace {

// State that forward keeps for backward besides tensors; the weight outlives the graph.
struct LossState {
  Parameter* weight;
  TensorParallel tp;
  ops::VocabRange range;
  ops::CrossEntropyOptions options;
  int64_t chunk;
  std::optional<ops::Fp8Recipe> fp8;

  // The largest magnitude of a logit's gradient: that of the loss, unless the loss has another term.
  std::optional<double> largest(double grad) const { return options.z_loss == 0 ? std::optional(grad) : std::nullopt; }
};

// Saves the input and fp64 [t]; the logits of a chunk live only while the loop works on it.
struct LinearCrossEntropy : Function<LinearCrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& weight,
                            const at::Tensor& labels, const LossState& state) {
    HeadProducts head(*state.weight, state.fp8, {});
    const at::Tensor all_hidden =
        state.tp.splits_tokens() ? all_gather_rows(hidden, state.tp.group, "loss input") : hidden;  // [t, h]
    const int64_t tokens = all_hidden.size(0);
    at::Tensor losses = at::empty({tokens}, all_hidden.options().dtype(at::kFloat));
    at::Tensor log_sum_exp = at::empty({tokens}, all_hidden.options().dtype(at::kDouble));
    for (int64_t first = 0; first < tokens; first += state.chunk) {
      const int64_t count = std::min(state.chunk, tokens - first);
      const at::Tensor logits = head.logits(all_hidden.narrow(0, first, count));
      const auto stats = ops::cross_entropy_forward(logits, labels.narrow(0, first, count), state.range, state.tp.group,
                                                    state.options);
      losses.narrow(0, first, count).copy_(stats.loss);
      log_sum_exp.narrow(0, first, count).copy_(stats.log_sum_exp);
    }
    ctx->save_for_backward({hidden, weight, labels, log_sum_exp});
    ops::save_state(ctx, state);
    return losses;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& state = ops::saved_state<LossState>(ctx);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &hidden = saved[0], &labels = saved[2], &log_sum_exp = saved[3];
    const at::Tensor all_hidden =
        state.tp.splits_tokens() ? all_gather_rows(hidden, state.tp.group, "loss backward input") : hidden;
    const at::Tensor grad_loss = grads[0].contiguous();
    const bool needs_dx = ctx->needs_input_grad(0), needs_dw = ctx->needs_input_grad(1);
    at::Tensor dx = needs_dx ? at::empty_like(all_hidden) : at::Tensor();
    at::Tensor dw;
    std::optional<HeadProducts> head(std::in_place, *state.weight, state.fp8, HeadProducts::Wanted{needs_dx, needs_dw});
    for (int64_t first = 0; first < all_hidden.size(0); first += state.chunk) {
      const int64_t count = std::min(state.chunk, all_hidden.size(0) - first);
      const at::Tensor logits = head->logits(all_hidden.narrow(0, first, count));
      // Overwrites the logits by their gradient.
      ops::cross_entropy_backward_(logits, labels.narrow(0, first, count), log_sum_exp.narrow(0, first, count),
                                   grad_loss.narrow(0, first, count), state.range, state.options);
      head->start_backward();
      if (needs_dx) head->grad_input(dx.narrow(0, first, count));
      if (!needs_dw) continue;
      const at::Tensor part = head->add_weight_grad();
      if (part.defined()) dw = dw.defined() ? dw.add_(part) : part;
    }
    head.reset();
    return {needs_dx ? reduce_head_grad(dx, state.tp) : dx, dw, {}, {}};
  }
};

// Checks all labels before the first chunk, so that the message counts tokens of the whole batch and all ranks throw at
// the same point.
void check_labels(const at::Tensor& labels, int64_t vocab, int64_t ignore_index) {
  if (!labels.is_cpu()) return;
  const auto* ids = labels.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < labels.numel(); ++i)
    check<DataError>((ids[i] >= 0 && ids[i] < vocab) || ids[i] == ignore_index,
                     "the label of token {} is {}; the vocabulary has ids 0 to {}, and {} marks a token without loss",
                     i, ids[i], vocab - 1, ignore_index);
}

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, Parameter& weight, const at::Tensor& labels,
                                const ops::VocabRange& range, const TensorParallel& tp,
                                const ops::CrossEntropyOptions& options, int64_t chunk, std::optional<double> grad,
                                const std::optional<ops::Fp8Recipe>& fp8) {
  check(chunk > 0, "the loss needs a chunk of at least one token, not {}", chunk);
  check_labels(labels, range.total, options.ignore_index);
  const LossState state{&weight, tp, range, options, chunk, fp8};
  if (grad && at::GradMode::is_enabled())
    return linear_loss(
        hidden,
        {.weight = &weight, .tp = tp, .chunk = chunk, .grad = *grad, .largest = state.largest(*grad), .fp8 = fp8},
        [&](const at::Tensor& logits, int64_t first, bool /*wants_grad*/) {
          return ops::cross_entropy_with_grad_(logits, labels.narrow(0, first, logits.size(0)), range, tp.group,
                                               options, *grad);
        });
  return LinearCrossEntropy::apply(hidden, weight.value, labels, state);
}

}  // namespace megalith::nn
