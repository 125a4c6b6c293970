// Route, dispatch, compute, combine. The shared experts do not depend on routing: they are queued before the host waits
// for the sizes of the dispatch or, with overlap_shared, in halves beside the rows in flight. Their output includes the
// residual and takes its place, so that combine() adds everything.
//
//   x ─► router ─► lists ─► loads ─► dispatch ─► experts ─► combine ─► + base
//   └──► shared experts: up ······· beside it ······· down ·· beside it ─► base
//
// Collectives over the ranks of the experts, in this order on all of them: loads, rows out (dispatch), rows back
// (combine); those of the shared experts are over tp. Backward runs them in reverse, without the loads.
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
      experts_(scope.child("experts"), shape, share_of(shape, context), options.recompute_activation,
               options.fp8 ? tp.fp8 : std::nullopt) {
  if (shape.shared_width == 0) return;
  shared_.emplace(scope.child("shared"), shared_shape(shape), tp);
  if (shape.shared_gate)
    shared_gate_weight_ = &scope.add({.name = "shared_gate.weight",
                                      .init = shape.init,
                                      .use = WeightUse::kRouter,
                                      .partial_grad_over_tp = tp.splits_tokens(),
                                      .replica = tp.rank()},
                                     {1, shape.hidden});
}

at::Tensor MoeLayer::shared_gate(const at::Tensor& x) const {
  if (!shared_gate_weight_) return {};
  return with_low_rank(at::mm(x, shared_gate_weight_->value.t()), x, *shared_gate_weight_, tp_.splits_tokens());
}

at::Tensor MoeLayer::shared_down(const at::Tensor& up, const at::Tensor& gate, const at::Tensor& residual) const {
  if (!gate.defined()) return shared_->forward_down(up, residual);
  const at::Tensor out = shared_->forward_down(up, {}) * gate.sigmoid();
  return residual.defined() ? residual + out : out;
}

at::Tensor MoeLayer::shared(const at::Tensor& x, const at::Tensor& residual, bool training) const {
  const auto run = [this](const at::Tensor& in, const at::Tensor& added) {
    return shared_down(shared_->forward_up(in), shared_gate(in), added);
  };
  if (!options_.recompute_shared || !training) return run(x, residual);
  if (!residual.defined()) return recompute([run](const TensorList& in) { return run(in[0], {}); }, {x}, nullptr);
  return recompute([run](const TensorList& in) { return run(in[0], in[1]); }, {x, residual}, nullptr);
}

namespace {

// A dispatch whose sizes the host has read, for the second run of a recomputed layer. It repeats the choices as well:
// if a score changed in its last bit, the sizes would no longer fit.
struct KnownDispatch {
  at::Tensor experts;  // int16 [t, k]
  std::shared_ptr<const MemberLoads> loads;
};

}  // namespace

Routing MoeLayer::route(const at::Tensor& x, const LayerInput& input, std::unique_ptr<DispatchPlan>& plan) const {
  RegionNotes* const region = RegionNotes::current();
  const auto* known = region ? region->find<KnownDispatch>(this) : nullptr;
  Routing routing = router_.forward(x, input, known ? known->experts.to(at::kLong) : at::Tensor());
  if (x.scalar_type() != at::kDouble) routing.weights = routing.weights.to(at::kFloat);  // a router may be in fp64
  const ExpertLists lists = list_tokens(routing, router_.shape());
  std::shared_ptr<const MemberLoads> loads = known ? known->loads : nullptr;
  if (!loads && !knows_sizes(lists, ranks_, options_.dispatcher)) {
    loads = gather_loads(lists, ranks_, options_.dispatcher);
    if (region && region->is_first_run()) region->leave(this, KnownDispatch{routing.experts.to(at::kShort), loads});
  }
  router_.note(lists, input);
  plan = plan_dispatch(lists, ranks_, options_.dispatcher, std::move(loads));
  return routing;
}

at::Tensor MoeLayer::forward(const at::Tensor& x, const at::Tensor& residual, const LayerInput& input) const {
  check<ConfigError>(
      tp_.size() == 1 || tp_.splits_tokens() || !input.training,
      "a model with experts cannot be trained at tensor_model_parallel_size {} without sequence_parallel; switch it on",
      tp_.size());
  std::unique_ptr<DispatchPlan> plan;
  const Routing routing = route(x, input, plan);
  at::Tensor base = residual, shared_up, gate;
  const auto run_shared = [&] { base = shared(x, residual, input.training); };
  const auto run_shared_up = [&] {
    shared_up = shared_->forward_up(x);
    gate = shared_gate(x);
  };
  const bool overlap = shared_ && options_.overlap_shared, halves = overlap && !options_.recompute_shared;
  if (shared_ && !overlap) run_shared();  // the device runs it while the host waits in dispatch()
  std::function<void()> meanwhile;
  if (overlap) meanwhile = halves ? std::function<void()>(run_shared_up) : run_shared;
  const at::Tensor rows = plan->dispatch(x, meanwhile);
  // On a GPU memory is scarce, and copying the rows again in backward is cheap.
  const LocalRows local = x.is_cuda() ? plan->local(x, routing.weights) : LocalRows{};
  const at::Tensor outputs = experts_.forward(rows, plan->counts(), local);
  return plan->combine(outputs, local.weights.defined() ? at::Tensor() : routing.weights,
                       [&] { return halves ? shared_down(shared_up, gate, residual) : base; });
}

}  // namespace megalith::nn
