// The router: logits, choice of experts (routing.h), and the losses attached to the chosen weights.
//
// A recomputed layer runs forward twice, first without and then with gradients. Statistics and losses belong to the
// second pass only (counts()). With `replay`, the first pass queues its choice and the second takes it from the front
// of the queue, so that a token goes to the same experts in both.
//
// A balancing loss is computed from this rank's scores and the counts of all ranks that hold parts of the same tokens.
// Each rank holds a part of the sum, so that no collective is needed in backward.
#include "megalith/nn/moe/router.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/nn/moe/balance.h"
#include "megalith/nn/parameter/low_rank.h"
#include "megalith/ops/kernel/host_values.h"

namespace megalith::nn {

using layout::GroupKind;

namespace {

constexpr const char* kZLoss = "z_loss";
constexpr const char* kSpread = "expert_distributed_std";
constexpr const char* kMostTokens = "max_token_per_expert";

// Names as Megatron logs them.
const char* name_of(BalanceLoss::Kind kind) {
  switch (kind) {
    case BalanceLoss::Kind::kBatch:
      return "load_balancing_loss";
    case BalanceLoss::Kind::kSequence:
      return "seq_load_balancing_loss";
    case BalanceLoss::Kind::kGlobal:
      return "global_load_balancing_loss";
  }
  return "";
}

void add_value(std::vector<RouterStatistics::Value>& values, const std::string& name, const at::Tensor& value) {
  for (RouterStatistics::Value& each : values)
    if (each.name == name) {
      each.sum = each.sum + value;
      return;
    }
  values.push_back({name, value});
}

// Whether backward follows this pass; false in the first pass of a recomputed layer.
bool counts(const LayerInput& input) { return input.training && at::GradMode::is_enabled(); }

// x Wᵀ in a wider dtype than x and W have. Keeps x and W in their own dtype, where autograd would keep wide copies.
struct WideLinear : torch::autograd::Function<WideLinear> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            at::ScalarType dtype) {
    ctx->save_for_backward({x, weight});
    return x.to(dtype).mm(weight.to(dtype).t());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &dy = grads[0];
    at::Tensor dx, dw;
    if (ctx->needs_input_grad(0)) dx = dy.mm(weight.to(dy.scalar_type())).to(x.scalar_type());
    if (ctx->needs_input_grad(1)) dw = dy.t().mm(x.to(dy.scalar_type())).to(weight.scalar_type());
    return {dx, dw, {}};
  }
};

}  // namespace

std::vector<std::string> loss_names(const RouterShape& shape) {
  std::vector<std::string> names;
  for (const BalanceLoss& loss : shape.losses) names.emplace_back(name_of(loss.kind));
  if (shape.z_coeff > 0) names.emplace_back(kZLoss);
  return names;
}

std::vector<std::string> spread_names(const RouterShape& shape) {
  const auto by_batch = [](const BalanceLoss& loss) { return loss.kind == BalanceLoss::Kind::kBatch; };
  if (std::ranges::none_of(shape.losses, by_batch)) return {};
  return {kSpread, kMostTokens};
}

Router::Router(const ParameterScope& scope, const RouterShape& shape, int64_t hidden, Init init,
               const TensorParallel& tp, parallel::ParallelContext& context)
    : shape_(shape), tp_(tp), context_(context) {
  weight_ = &scope.add({.name = "weight",
                        .init = init,
                        .use = WeightUse::kRouter,
                        .partial_grad_over_tp = tp.splits_tokens(),
                        .replica = tp.rank()},
                       {shape.experts, hidden});
  if (shape.expert_bias)
    bias_ = &scope.add({.name = "bias", .role = ParameterRole::kBuffer, .replica = tp.rank()}, {shape.experts});
}

at::Tensor Router::logits(const at::Tensor& x, const LayerInput& input) const {
  at::Tensor in = x;
  if (shape_.jitter > 0 && input.training) {
    // Ranks with different tokens draw different noise; ranks with the same tokens must draw the same.
    const auto fork = context_.rng().fork_if(tp_.splits_tokens());
    in = x * at::empty_like(x).uniform_(1 - shape_.jitter, 1 + shape_.jitter, context_.rng().generator());
  }
  const at::ScalarType dtype = at::promoteTypes(shape_.dtype.value_or(x.scalar_type()), x.scalar_type());
  const at::Tensor plain = dtype == x.scalar_type() ? at::mm(in, weight_->value.to(dtype).t())
                                                    : WideLinear::apply(in, weight_->value, dtype);
  return active_update(*weight_) ? with_low_rank(plain, in.to(dtype), *weight_, tp_.splits_tokens()) : plain;
}

at::Tensor Router::replayed() const {
  if (replayed_.empty() || (shape_.replay && !at::GradMode::is_enabled())) return {};
  at::Tensor first = replayed_.front();
  replayed_.pop_front();
  return first;
}

Routing Router::forward(const at::Tensor& x, const LayerInput& input, const at::Tensor& decided) const {
  const at::Tensor scores = logits(x, input);
  const at::Tensor recorded = replayed(), before = recorded.defined() ? recorded : decided;
  check(!before.defined() || (before.size(0) == x.size(0) && before.size(1) == shape_.topk),
        "a routing decision of {} tokens is replayed for {}", before.defined() ? before.size(0) : 0, x.size(0));
  Routing routing = choose_experts(scores, shape_, bias_ ? bias_->value : at::Tensor(), input.training, before);
  if (shape_.replay && input.training && !at::GradMode::is_enabled()) replayed_.push_back(routing.experts);
  if (recording_) recorded_.push_back(routing.experts);
  if (counts(input)) routing.weights = with_losses(routing.weights, scores, input);
  return routing;
}

// Returns int64 [tokens]: the sequence of each token of this rank.
at::Tensor Router::sequence_numbers(const ops::SequenceLayout& layout, int64_t tokens) const {
  const at::Tensor ends = layout.cumulative_tensor(at::kCPU);
  const at::Tensor lengths = ends.narrow(0, 1, layout.sequences()) - ends.narrow(0, 0, layout.sequences());
  const at::Tensor numbers = at::repeat_interleave(lengths.to(at::kLong));
  return tp_.splits_tokens() ? numbers.narrow(0, tp_.rank() * tokens, tokens) : numbers;
}

// `choices` [1, E] counts the tokens of all ranks that hold parts of the micro-batch, so these ranks note the same.
void Router::note_spread(const at::Tensor& choices) const {
  add_value(statistics_.spread, kSpread, at::std(choices, /*unbiased=*/false));
  add_value(statistics_.spread, kMostTokens, choices.max());
}

at::Tensor Router::with_losses(const at::Tensor& weights, const at::Tensor& logits, const LayerInput& input) const {
  at::Tensor out = weights;
  const comm::Group tokens_group = context_.group(GroupKind::kTpCp);
  const double ranks = tokens_group.size();
  const double per_token = shape_.per_token_loss ? static_cast<double>(logits.size(0)) : 1;
  const at::Tensor scores = shape_.losses.empty() ? at::Tensor() : balance_scores(logits, shape_);
  for (const BalanceLoss& balance : shape_.losses) {
    BalanceScope scope{.group = tokens_group};
    double factor = balance.coeff * per_token;
    if (balance.kind == BalanceLoss::Kind::kSequence) {
      scope.sequences = input.layout.sequences();
      scope.sequence = ops::to_device(sequence_numbers(input.layout, logits.size(0)), logits.device());
      if (shape_.per_token_loss) factor /= static_cast<double>(scope.sequences);
    }
    if (balance.kind == BalanceLoss::Kind::kGlobal) scope.group = context_.group(GroupKind::kTpDpCp);
    BalanceCounts choices = count_choices(scores, shape_, scope);
    if (balance.kind == BalanceLoss::Kind::kBatch) note_spread(choices.choices);
    if (balance.kind == BalanceLoss::Kind::kGlobal) {
      // The mean over the micro-batches of this step so far.
      global_choices_ = global_passes_++ == 0 ? choices.choices : global_choices_ + choices.choices;
      choices.choices = global_choices_ / static_cast<double>(global_passes_);
    }
    const at::Tensor loss = balance_loss(scores, choices, shape_, scope);
    // Statistics are averaged over ranks later, but `loss` is a summand: scale it by the number of summands.
    add_value(statistics_.losses, name_of(balance.kind), loss.detach() * static_cast<double>(scope.group.size()));
    if (factor != 0) out = attach_loss(out, loss * factor, input.aux_loss_scale);
  }
  if (shape_.z_coeff > 0) {
    const at::Tensor loss = z_loss(logits, {});
    add_value(statistics_.losses, kZLoss, loss.detach());
    // A mean over this rank's tokens: dividing by the ranks makes it a summand, like the losses above.
    out = attach_loss(out, loss * (shape_.z_coeff / ranks * per_token), input.aux_loss_scale);
  }
  return out;
}

void Router::note(const ExpertLists& lists, const LayerInput& input) const {
  if (!counts(input)) return;
  const at::Tensor now = lists.load.to(at::kFloat);
  statistics_.load = statistics_.load.defined() ? statistics_.load + now : now;
  statistics_.choices += lists.tokens() * lists.topk();
  ++statistics_.micro_batches;
}

void Router::begin_step() const {
  statistics_ = {};
  global_choices_.reset();
  global_passes_ = 0;
}

void Router::end_step(const at::Tensor& load) const {
  const at::NoGradGuard no_grad;
  if (bias_ && shape_.bias_update_rate != 0)
    bias_->value.copy_(updated_bias(bias_->value, load, shape_.bias_update_rate));
}

void Router::start_recording() const {
  recording_ = true;
  recorded_.clear();
}

std::vector<at::Tensor> Router::take_recorded() const {
  recording_ = false;
  return std::move(recorded_);
}

void Router::replay(std::vector<at::Tensor> decisions) const { replayed_.assign(decisions.begin(), decisions.end()); }

}  // namespace megalith::nn
