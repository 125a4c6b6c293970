#include "tests/nn/moe/moe_case.h"

#include <mutex>

#include "megalith/layout/rng_seeds.h"

namespace megalith::nn {

std::string MoeGrid::name() const {
  return fmt::format("world {} tp {} ep {} etp {} {}", world, tp, ep, etp,
                     options.dispatcher == MoeOptions::Dispatcher::kAllToAll ? "alltoall" : "allgather");
}

FullTensors random_moe_weights(const MoeShape& shape, uint64_t seed) {
  FullTensors all{{"router.weight", random_tensor({shape.router.experts, shape.hidden}, seed)}};
  if (shape.router.expert_bias) all["router.bias"] = random_tensor({shape.router.experts}, seed + 1, 0.2);
  const auto mlp = [&](const std::string& name, int64_t width) {
    for (const char* part : {"gate", "up"})
      all[name + part + ".weight"] = random_tensor({width, shape.hidden}, ++seed * 31, 0.5);
    all[name + "down.weight"] = random_tensor({shape.hidden, width}, ++seed * 31, 0.5);
  };
  for (int64_t e = 0; e < shape.router.experts; ++e) mlp(fmt::format("experts.{}.", e), shape.width);
  if (shape.shared_width > 0) mlp("shared.", shape.shared_width);
  if (shape.shared_gate) all["shared_gate.weight"] = random_tensor({1, shape.hidden}, seed + 7);
  return all;
}

MoeTokens random_tokens(const std::vector<int64_t>& counts, int64_t hidden, uint64_t seed) {
  MoeTokens tokens;
  for (const int64_t count : counts) {
    tokens.x.push_back(random_tensor({count, hidden}, ++seed));
    tokens.dy.push_back(random_tensor({count, hidden}, ++seed));
  }
  return tokens;
}

namespace {

at::Tensor mlp(const at::Tensor& x, const FullTensors& w, const std::string& name) {
  const at::Tensor gate = x.mm(w.at(name + "gate.weight").t());
  return (gate * gate.sigmoid() * x.mm(w.at(name + "up.weight").t())).mm(w.at(name + "down.weight").t());
}

// [t, E]: the weight of each expert for each token, 0 where it is not chosen or dropped.
at::Tensor dense_weights(const at::Tensor& logits, const RouterShape& r, const at::Tensor& bias) {
  const at::Tensor scores = r.score == ScoreFunction::kSigmoid ? logits.sigmoid()
                            : r.pre_softmax                    ? logits.softmax(-1)
                                                               : logits.exp();
  const at::Tensor ranking = bias.defined() ? scores.detach() + bias : scores.detach();
  const at::Tensor chosen = at::zeros_like(logits).scatter(1, std::get<1>(ranking.topk(r.topk)), 1);
  at::Tensor weights = scores * chosen;
  if (!r.pre_softmax && (r.score == ScoreFunction::kSoftmax || (r.normalize && r.topk > 1)))
    weights = weights / weights.sum(-1, true);
  weights = weights * r.scaling;
  if (!r.capacity_factor || logits.size(0) == 0) return weights;
  const auto capacity = std::min<int64_t>(
      logits.size(0), static_cast<int64_t>(std::ceil(static_cast<double>(logits.size(0) * r.topk) /
                                                     static_cast<double>(r.experts) * *r.capacity_factor)));
  // Earlier tokens weigh more where the position decides.
  const at::Tensor order =
      r.drop_by_position ? chosen * at::arange(logits.size(0), 0, -1, logits.options()).unsqueeze(1) : weights.detach();
  return weights * at::zeros_like(logits).scatter(0, std::get<1>(order.topk(capacity, 0)), 1);
}

at::Tensor dense_forward(const at::Tensor& x, const MoeShape& shape, const FullTensors& w) {
  const at::Tensor bias = shape.router.expert_bias ? w.at("router.bias").detach() : at::Tensor();
  const at::Tensor weights = dense_weights(x.mm(w.at("router.weight").t()), shape.router, bias);
  at::Tensor y = at::zeros_like(x);
  for (int64_t e = 0; e < shape.router.experts; ++e)
    y = y + weights.select(1, e).unsqueeze(1) * mlp(x, w, fmt::format("experts.{}.", e));
  if (shape.shared_width == 0) return y;
  const at::Tensor shared = mlp(x, w, "shared.");
  return y + (shape.shared_gate ? shared * x.mm(w.at("shared_gate.weight").t()).sigmoid() : shared);
}

// The ranks whose gradients of a parameter add up.
comm::Group summed_over(const Parameter& parameter, const parallel::ParallelContext& context) {
  if (parameter.spec.expert) return context.edp();
  return parameter.spec.partial_grad_over_tp ? context.group(layout::GroupKind::kTpDpCp) : context.dp(true);
}

}  // namespace

MoeResult dense_moe(const MoeShape& shape, const FullTensors& weights, const MoeTokens& tokens) {
  FullTensors leaves;
  for (const auto& [name, value] : weights) leaves[name] = leaf(value.to(at::kDouble));
  MoeResult result;
  for (size_t rank = 0; rank < tokens.x.size(); ++rank) {
    const at::Tensor x = leaf(tokens.x[rank].to(at::kDouble));
    const at::Tensor y = dense_forward(x, shape, leaves);
    y.backward(tokens.dy[rank].to(at::kDouble));
    result.y.push_back(y.detach());
    result.dx.push_back(x.grad());
  }
  for (const auto& [name, value] : leaves)
    if (name != "router.bias") result.grads[name] = value.grad().defined() ? value.grad() : at::zeros_like(value);
  return result;
}

MoeResult spread_moe(const MoeShape& shape, const FullTensors& weights, const MoeTokens& tokens, const MoeGrid& grid,
                     bool main_grads) {
  MoeResult result{std::vector<at::Tensor>(tokens.x.size()), std::vector<at::Tensor>(tokens.x.size()), {}};
  for (const auto& [name, value] : weights)
    if (name != "router.bias") result.grads[name] = at::full_like(value, NAN);
  std::mutex mutex;
  testing::run_ranks(grid.world, [&](const testing::Rank& r) {
    parallel::ParallelContext context(
        r.world, layout::RankGrid({.world_size = grid.world, .tp = grid.tp, .ep = grid.ep, .etp = grid.etp}));
    context.rng().seed(layout::seeds_for_base(1, context.place().tp_rank, 0, 0));
    ParameterSet set(at::kFloat, at::kCPU);
    const MoeLayer layer(ParameterScope(set), shape, grid.options, {context.tp(), true, grid.fp8}, context);
    for (const auto& parameter : set.all()) {
      const at::NoGradGuard no_grad;
      for (const auto& part : parameter->sharded()) part.local.copy_(rectangle(weights.at(part.name), part));
    }
    if (main_grads) attach_main_grads(set);
    const auto rank = static_cast<size_t>(r.rank);
    const at::Tensor x = leaf(tokens.x[rank]);
    LayerInput input;
    input.layout = ops::SequenceLayout::packed({std::max<int64_t>(1, x.size(0) * grid.tp)});
    const at::Tensor y = layer.forward(x, {}, input);
    y.backward(tokens.dy[rank]);
    result.y[rank] = y.detach();
    result.dx[rank] = x.grad();
    for (const auto& parameter : set.all()) {
      if (parameter->spec.role == ParameterRole::kBuffer) continue;
      const at::Tensor grad = grad_of(*parameter).to(at::kDouble);
      summed_over(*parameter, context).all_reduce(grad);
      const std::lock_guard lock(mutex);
      for (const auto& part : parameter->sharded(grad)) rectangle(result.grads.at(part.name), part).copy_(part.local);
    }
  });
  return result;
}

void expect_same(const MoeResult& actual, const MoeResult& expected, const std::string& what) {
  SCOPED_TRACE(what);
  for (size_t rank = 0; rank < expected.y.size(); ++rank) {
    expect_close(actual.y[rank], expected.y[rank], fmt::format("output of rank {}", rank));
    expect_close(actual.dx[rank], expected.dx[rank], fmt::format("gradient of the input of rank {}", rank));
  }
  for (const auto& [name, grad] : expected.grads) {
    // A router's gradients are differences of products of the order of 1, which may nearly cancel; noise is left.
    const double noise = name == "router.weight" ? 5e-6 : 0;
    expect_close(actual.grads.at(name), grad, "gradient of " + name, testing::kClose, noise);
  }
}

}  // namespace megalith::nn
