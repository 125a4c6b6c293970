// Route, dispatch, compute, combine. The shared experts do not depend on routing: they run first, or, with
// overlap_shared, while the tokens are in flight. Their output includes the residual and takes its place, so that
// combine() adds everything.
//
//   x ─► router ─► lists ─► plan ─► dispatch ─► experts ─► combine ─► + base
//   └──► shared experts (+ residual) ─────────────────────────────────► base
//
// Collectives over the ranks of the experts, in this order on all of them: counts (in the plan), rows out (dispatch),
// rows back (combine); those of the shared experts are over tp. Backward runs them in reverse.
#include "megalith/nn/moe/moe_layer.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include "megalith/base/error.h"
#include "megalith/nn/parameter/low_rank.h"
#include "megalith/nn/recompute.h"

namespace megalith::nn {

namespace {

// Throws all problems of a shape at once.
const MoeShape& checked(const MoeShape& shape, const parallel::ParallelContext& context) {
  const auto messages = problems(shape, context.grid().shape().ep, context.grid().etp());
  check<ConfigError>(messages.empty(), "{}", fmt::join(messages, "; "));
  return shape;
}

// Experts are dealt to expert-parallel ranks in consecutive blocks, as Megatron does.
ExpertShare share_of(const MoeShape& shape, const parallel::ParallelContext& context) {
  const int64_t count = checked(shape, context).router.experts / context.grid().shape().ep;
  return {context.place().ep_rank * count, count, context.grid().etp(), context.place().etp_rank};
}

}  // namespace

MlpShape shared_shape(const MoeShape& shape) {
  return {.hidden = shape.hidden,
          .width = shape.shared_width,
          .gated = shape.gated,
          .activation = shape.activation,
          .init = shape.init,
          .out_init = shape.out_init};
}

MoeLayer::MoeLayer(const ParameterScope& scope, const MoeShape& shape, const MoeOptions& options,
                   const TensorParallel& tp, parallel::ParallelContext& context)
    : options_(options),
      tp_(tp),
      ranks_(ExpertRanks::of(context)),
      router_(scope.child("router"), checked(shape, context).router, shape.hidden, shape.init, tp, context),
      experts_(scope.child("experts"), shape, share_of(shape, context), options.recompute_activation) {
  if (shape.shared_width == 0) return;
  shared_.emplace(scope.child("shared"), shared_shape(shape), tp);
  if (shape.shared_gate)
    shared_gate_ = &scope.add({.name = "shared_gate.weight",
                               .init = shape.init,
                               .use = WeightUse::kRouter,
                               .partial_grad_over_tp = tp.splits_tokens(),
                               .replica = tp.rank()},
                              {1, shape.hidden});
}

at::Tensor MoeLayer::shared(const at::Tensor& x, const at::Tensor& residual, bool training) const {
  const auto run = [this](const at::Tensor& in, const at::Tensor& added) {
    if (!shared_gate_) return shared_->forward(in, added);
    const at::Tensor gate = with_low_rank(at::mm(in, shared_gate_->value.t()), in, *shared_gate_, tp_.splits_tokens());
    const at::Tensor out = shared_->forward(in, {}) * gate.sigmoid();
    return added.defined() ? added + out : out;
  };
  if (!options_.recompute_shared || !training) return run(x, residual);
  if (!residual.defined()) return recompute([run](const TensorList& in) { return run(in[0], {}); }, {x}, nullptr);
  return recompute([run](const TensorList& in) { return run(in[0], in[1]); }, {x, residual}, nullptr);
}

at::Tensor MoeLayer::forward(const at::Tensor& x, const at::Tensor& residual, const LayerInput& input) const {
  check<ConfigError>(
      tp_.size() == 1 || tp_.splits_tokens() || !input.training,
      "a model with experts cannot be trained at tensor_model_parallel_size {} without sequence_parallel; switch it on",
      tp_.size());
  Routing routing = router_.forward(x, input);
  if (x.scalar_type() != at::kDouble) routing.weights = routing.weights.to(at::kFloat);  // a router may be in fp64
  const ExpertLists lists = list_tokens(routing, router_.shape(), ranks_.group.size() == 1);
  router_.note(lists, input);
  const auto plan = options_.dispatcher == MoeOptions::Dispatcher::kAllToAll
                        ? plan_all_to_all(lists, ranks_, x.device())
                        : plan_all_gather(lists, ranks_, x.device());
  at::Tensor base = residual;
  const auto run_shared = [&] { base = shared(x, residual, input.training); };
  const bool overlap = shared_ && options_.overlap_shared;
  if (shared_ && !overlap) run_shared();
  const at::Tensor rows = plan->dispatch(x, overlap ? std::function<void()>(run_shared) : nullptr);
  const LocalRows local = plan->local(x, routing.weights);
  const at::Tensor outputs = experts_.forward(rows, plan->counts(), local);
  return plan->combine(outputs, local.weights.defined() ? at::Tensor() : routing.weights, base);
}

}  // namespace megalith::nn
