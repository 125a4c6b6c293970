// Choosing experts, and listing the tokens of each expert.
//
// Lists are made by sorting, prefix sums and scatters of fixed sizes, so that they stay on the device, and the host
// never learns how many tokens an expert got:
//
//   all choices      a stable sort by expert
//   dropping         each choice gets its rank among those of its expert, by position or by weight; those beyond the
//                    capacity are sorted as if they had chosen an expert E that does not exist
//   padding          a table [t, E] marks the choices that are left; prefix sums over the tokens find the first others,
//                    which fill up every expert, and the place of each in its list
#include "megalith/nn/moe/routing.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "megalith/ops/moe/top_experts.h"

namespace megalith::nn {

namespace {

constexpr double kTiny = 1e-20;  // keeps a sum of scores from being 0

// Scores are computed in fp32 at least, whatever the dtype of the logits.
at::Tensor widened(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
}

// Scales the exponentials of the logits so that rows and columns have equal sums (Sinkhorn and Knopp), without history.
// Iterates until the column factors change by less than kTolerance on average; each iteration waits for the device.
at::Tensor sinkhorn(const at::Tensor& logits) {
  constexpr double kEpsilon = 1e-8, kTolerance = 1e-4;
  const at::Tensor cost = logits.detach().exp();
  const auto rows = static_cast<double>(cost.size(0)), columns = static_cast<double>(cost.size(1));
  at::Tensor d0 = at::ones({cost.size(0)}, cost.options()), d1 = at::ones({cost.size(1)}, cost.options());
  for (double error = 1; error > kTolerance;) {
    d0 = ((d1 * cost).sum(1) + kEpsilon).reciprocal() / rows;
    const at::Tensor next = ((d0.unsqueeze(1) * cost).sum(0) + kEpsilon).reciprocal() / columns;
    error = (d1 - next).abs().mean().item<double>();
    d1 = next;
  }
  return d1 * cost * d0.unsqueeze(1);
}

// Translates the shape into the options of the kernel.
ops::ExpertChoice choice_of(const RouterShape& shape) {
  using Score = ops::ExpertChoice::Score;
  if (shape.sinkhorn) return {.topk = shape.topk, .score = shape.topk == 1 ? Score::kSigmoid : Score::kSoftmax};
  ops::ExpertChoice choice{.topk = shape.topk, .normalize = shape.normalize && shape.topk > 1};
  if (shape.score == ScoreFunction::kSigmoid)
    choice.score = Score::kSigmoid;
  else if (shape.pre_softmax)
    choice.score = Score::kSoftmax;
  choice.groups = shape.groups;
  choice.group_topk = shape.group_topk;
  choice.group_best = shape.group_best > 0 ? shape.group_best : std::max<int64_t>(1, shape.topk / shape.group_topk);
  return choice;
}

}  // namespace

Routing choose_experts(const at::Tensor& logits, const RouterShape& shape, const at::Tensor& bias, bool training,
                       const at::Tensor& decided) {
  ops::ExpertChoice choice = choice_of(shape);
  choice.scaling = shape.scaling;
  at::Tensor before = decided;
  if (shape.sinkhorn && training && !before.defined())
    before = ops::largest_places(sinkhorn(widened(logits)), shape.topk);
  auto [experts, weights] = ops::top_experts(logits, choice, shape.sinkhorn ? at::Tensor() : bias, before);
  return {experts, weights};
}

at::Tensor balance_scores(const at::Tensor& logits, const RouterShape& shape) {
  const at::Tensor wide = widened(logits);
  if (shape.score == ScoreFunction::kSoftmax) return wide.softmax(-1);
  const at::Tensor scores = wide.sigmoid();
  return scores / (scores.sum(-1, /*keepdim=*/true) + kTiny);
}

at::Tensor balance_counts(const at::Tensor& scores, int64_t topk) {
  const at::Tensor plain = scores.detach();
  return at::zeros_like(plain).scatter_(1, std::get<1>(plain.topk(topk, -1)), 1);
}

int64_t expert_capacity(int64_t tokens, const RouterShape& shape) {
  return static_cast<int64_t>(std::ceil(static_cast<double>(tokens * shape.topk) / static_cast<double>(shape.experts) *
                                        shape.capacity_factor.value_or(1)));
}

namespace {

// Returns the rank of each choice among those of its expert, int64 [n], for choices [n, 1] or [t, k] in this order.
at::Tensor rank_in_expert(const at::Tensor& experts, int64_t count) {
  const ops::SortedChoices sorted = ops::sort_choices(experts, count);
  return sorted.map.row.flatten() - sorted.first.index_select(0, experts.flatten());
}

// Returns bool [t, k]: the choices that an expert takes, the first `capacity` or those of the largest weights; of equal
// weights those of earlier tokens.
at::Tensor within_capacity(const Routing& routing, const RouterShape& shape, int64_t capacity) {
  const at::Tensor& experts = routing.experts;
  if (shape.drop_by_position) return rank_in_expert(experts, shape.experts).lt(capacity).view(experts.sizes());
  const at::Tensor order = std::get<1>(routing.weights.detach().flatten().sort(
      /*stable=*/std::optional<bool>(true), /*dim=*/0, /*descending=*/true));
  const at::Tensor rank = rank_in_expert(experts.flatten().index_select(0, order).unsqueeze(1), shape.experts);
  return at::empty_like(rank).scatter_(0, order, rank).lt(capacity).view(experts.sizes());
}

// Fills up every expert to `size` <= t rows with the first tokens that are not among its own, at weight 0.
ExpertLists padded_lists(const at::Tensor& experts, const at::Tensor& kept, int64_t count, int64_t size) {
  const int64_t tokens = experts.size(0);
  const auto number = experts.options();
  const at::Tensor own = at::zeros({tokens, count}, number).scatter_(1, experts, kept.to(at::kLong));
  const at::Tensor load = own.sum(0), others = own.eq(0);
  const at::Tensor fillers = others.logical_and(others.cumsum(0).le(size - load));
  const at::Tensor used = own.gt(0).logical_or(fillers);
  const at::Tensor row = used.cumsum(0) - 1 + at::arange(count, number) * size;  // [t, E], where used
  // Shifted by one, so that tokens which an expert does not have fall on an element that is cut off.
  const at::Tensor token = at::zeros({count * size + 1}, number)
                               .scatter_(0, (row + 1).masked_fill_(used.logical_not(), 0).flatten(),
                                         at::arange(tokens, number).unsqueeze(1).expand({-1, count}).flatten())
                               .narrow(0, 1, count * size);
  return {.chosen = experts,
          .map = {token, row.gather(1, experts).masked_fill_(kept.logical_not(), -1), /*every_row_used=*/false},
          .first = at::arange(count + 1, number) * size,
          .load = load,
          .rows_per_expert = size};
}

}  // namespace

ExpertLists list_tokens(const Routing& routing, const RouterShape& shape) {
  const at::NoGradGuard no_grad;
  const at::Tensor& experts = routing.experts;
  if (!shape.capacity_factor) {
    ops::SortedChoices sorted = ops::sort_choices(experts, shape.experts);
    return {.chosen = experts, .map = sorted.map, .first = sorted.first, .load = sorted.first.diff()};
  }
  const int64_t capacity = expert_capacity(experts.size(0), shape);
  const at::Tensor kept = within_capacity(routing, shape, capacity);
  if (shape.pad_to_capacity) return padded_lists(experts, kept, shape.experts, std::min(capacity, experts.size(0)));
  const at::Tensor dropped = kept.logical_not();
  const ops::SortedChoices sorted = ops::sort_choices(experts.masked_fill(dropped, shape.experts), shape.experts + 1);
  const at::Tensor first = sorted.first.narrow(0, 0, shape.experts + 1);
  return {.chosen = experts,
          .map = {sorted.map.token, sorted.map.row.masked_fill(dropped, -1)},
          .first = first,
          .load = first.diff(),
          .dropping = true};
}

}  // namespace megalith::nn
