// Choice of experts: one kernel forward and one backward on CUDA, ATen's operations otherwise. Only the weights are
// differentiable; which experts are chosen is a constant for autograd. The CUDA function saves the logits and the
// choice and computes scores again in backward, so that no [t, E] tensor of scores is stored.
#include "megalith/ops/moe/top_experts.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/autograd_state.h"
#include "megalith/ops/kernel/tensor_internal.h"
#include "megalith/ops/moe/top_experts_internal.h"

namespace megalith::ops {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Score = ExpertChoice::Score;

constexpr double kTiny = 1e-20;  // keeps a sum of scores from being 0, as in Megatron's router

// Returns the ranking with -inf for experts outside the best groups of a token.
Tensor limit_to_groups(const Tensor& ranking, const ExpertChoice& choice) {
  if (choice.group_topk >= choice.groups) return ranking;
  const Tensor grouped = ranking.view({ranking.size(0), choice.groups, ranking.size(1) / choice.groups});
  const Tensor scores = std::get<0>(grouped.topk(choice.group_best, -1)).sum(-1);      // [t, groups]
  const Tensor chosen = std::get<1>(scores.topk(choice.group_topk, -1));               // [t, group_topk]
  const Tensor outside = at::ones_like(scores, at::kBool).scatter_(1, chosen, false);  // [t, groups]
  return grouped.masked_fill(outside.unsqueeze(-1), -std::numeric_limits<double>::infinity()).view_as(ranking);
}

// The choice in ATen's operations, which autograd records itself: on the CPU, and for sizes beyond those of the
// kernels.
TopExperts composite(const Tensor& logits, const ExpertChoice& choice, const Tensor& bias, const Tensor& decided) {
  const Tensor wide = logits.to(acc_dtype(logits));
  Tensor values = wide;
  if (choice.score == Score::kSigmoid)
    values = wide.sigmoid();
  else if (choice.score == Score::kSoftmax)
    values = wide.softmax(-1);
  Tensor experts = decided;
  if (!experts.defined()) {
    const Tensor ranking = values.detach();
    experts = largest_places(limit_to_groups(bias.defined() ? ranking + bias : ranking, choice), choice.topk);
  }
  Tensor weights = values.gather(1, experts);
  if (choice.score == Score::kSoftmaxOfChosen) weights = weights.softmax(-1);
  if (choice.score == Score::kSigmoid && choice.normalize)
    weights = weights / (weights.sum(-1, /*keepdim=*/true) + kTiny);
  return {experts, choice.scaling == 1 ? weights : weights * choice.scaling};
}

// `logits` must stay alive until the kernel has been launched.
ExpertRows rows_of(const Tensor& logits, const ExpertChoice& choice) {
  return {logits.scalar_type(), logits.size(0), logits.size(1), logits.const_data_ptr(), choice};
}

// Returns the weights. Forward writes its choice into `experts`, or reads it there if it is `decided`.
struct TopExpertsFunction : torch::autograd::Function<TopExpertsFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& logits, const ExpertChoice& choice,
                        const std::optional<Tensor>& bias, bool decided, const Tensor& experts) {
    const Tensor in = logits.contiguous();
    Tensor weights = at::empty(experts.sizes(), in.options().dtype(at::kFloat));
    if constexpr (kCudaKernels)
      top_experts_cuda(rows_of(in, choice), bias ? bias->const_data_ptr<float>() : nullptr, decided,
                       experts.mutable_data_ptr<int64_t>(), weights.mutable_data_ptr<float>(), stream_of(in));
    ctx->save_for_backward({in});
    save_state(ctx, State{choice, experts});
    return weights;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const State& state = saved_state<State>(ctx);
    const Tensor in = ctx->get_saved_variables()[0], grad = grads[0].to(at::kFloat).contiguous();
    Tensor grad_logits = at::empty_like(in);
    if constexpr (kCudaKernels)
      top_experts_backward_cuda(rows_of(in, state.choice), state.experts.const_data_ptr<int64_t>(),
                                grad.const_data_ptr<float>(), grad_logits.mutable_data_ptr(), stream_of(in));
    return {grad_logits, {}, {}, {}, {}};
  }

 private:
  struct State {
    ExpertChoice choice;
    Tensor experts;
  };
};

}  // namespace

// topk returns indices by score, the sort brings them into ascending order: later sums then have one order on all
// devices.
Tensor largest_places(const Tensor& scores, int64_t k) { return std::get<0>(std::get<1>(scores.topk(k, -1)).sort(-1)); }

TopExperts top_experts(const Tensor& logits, const ExpertChoice& choice, const Tensor& bias, const Tensor& decided) {
  check(logits.dim() == 2 && choice.topk > 0 && choice.topk <= logits.size(1) && choice.groups > 0 &&
            logits.size(1) % choice.groups == 0,
        "top_experts cannot choose {} experts in {} groups from logits {}; use at most as many as there are, and a "
        "number of groups that divides them",
        choice.topk, choice.groups, shape_text(logits));
  check(
      !decided.defined() || (decided.dim() == 2 && decided.size(0) == logits.size(0) && decided.size(1) == choice.topk),
      "top_experts got decisions {} for logits {}; it takes [t, k]", shape_text(decided), shape_text(logits));
  if (!on_cuda_kernel(logits) || !fits_top_experts_cuda(logits.size(1), choice))
    return composite(logits, choice, bias, decided);
  const Tensor experts = decided.defined()
                             ? decided.contiguous()
                             : at::empty({logits.size(0), choice.topk}, logits.options().dtype(at::kLong));
  const Tensor wide = bias.defined() ? bias.to(at::kFloat).contiguous() : bias;
  return {experts, TopExpertsFunction::apply(logits, choice, if_defined(wide), decided.defined(), experts)};
}

}  // namespace megalith::ops
