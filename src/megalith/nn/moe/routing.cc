// Choosing experts, and listing the tokens of each expert.
//
// The lists exist in two forms. In general they are built on the host, where capacity, dropping and padding are simple
// loops over choices; on CUDA this costs a wait for the device. If one rank holds all experts and nothing is dropped,
// ops::sort_choices builds them on the device, and the host never learns how many tokens an expert got.
#include "megalith/nn/moe/routing.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/host_values.h"
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

// One choice in the list of an expert: the token, and which of its k choices it is.
struct Entry {
  int64_t token, place;
  double weight;
};

// Keeps `capacity` entries in token order: the first ones, or those of the largest weight.
void drop(std::vector<Entry>& entries, int64_t capacity, bool by_position) {
  if (static_cast<int64_t>(entries.size()) <= capacity) return;
  if (!by_position) {
    // Largest weights first, ties by token; then the survivors back into token order.
    std::ranges::stable_sort(entries, [](const Entry& a, const Entry& b) { return a.weight > b.weight; });
    std::sort(entries.begin(), entries.begin() + capacity,
              [](const Entry& a, const Entry& b) { return a.token < b.token; });
  }
  entries.resize(static_cast<size_t>(capacity));
}

// Pads the entries to `capacity` with the first tokens that are not among them, at weight 0.
void fill(std::vector<Entry>& entries, int64_t capacity, int64_t tokens) {
  std::vector<Entry> filled;
  size_t next = 0;
  int64_t missing = std::min(capacity, tokens) - static_cast<int64_t>(entries.size());
  for (int64_t token = 0; token < tokens; ++token) {
    if (next < entries.size() && entries[next].token == token)
      filled.push_back(entries[next++]);
    else if (missing-- > 0)
      filled.push_back({token, -1, 0});
  }
  entries = std::move(filled);
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

// For one rank that holds all experts, if nothing is dropped.
ExpertLists list_on_device(const at::Tensor& experts, const RouterShape& shape) {
  ExpertLists lists{.first = {}, .token = {}, .place = {}, .tokens = experts.size(0), .topk = experts.size(1)};
  lists.on_device = ops::sort_choices(experts, shape.experts);
  return lists;
}

}  // namespace

ExpertLists list_tokens(const Routing& routing, const RouterShape& shape, bool one_rank) {
  if (one_rank && routing.experts.is_cuda() && !shape.capacity_factor) return list_on_device(routing.experts, shape);
  const at::Tensor experts = routing.experts.to(at::kCPU).contiguous();
  const at::Tensor weights =
      shape.capacity_factor ? routing.weights.detach().to(at::kCPU, at::kDouble).contiguous() : at::Tensor();
  ExpertLists lists{.first = {}, .token = {}, .place = {}, .tokens = experts.size(0), .topk = experts.size(1)};
  std::vector<std::vector<Entry>> by_expert(static_cast<size_t>(shape.experts));
  const auto* expert = experts.const_data_ptr<int64_t>();
  const double* weight = weights.defined() ? weights.const_data_ptr<double>() : nullptr;
  for (auto& entries : by_expert) entries.reserve(static_cast<size_t>(2 * experts.numel() / shape.experts));
  for (int64_t token = 0; token < lists.tokens; ++token)
    for (int64_t place = 0; place < lists.topk; ++place) {
      const int64_t at = token * lists.topk + place;
      by_expert[static_cast<size_t>(expert[at])].push_back({token, place, weight ? weight[at] : 0});
    }
  lists.first.push_back(0);
  for (auto& entries : by_expert) {
    if (shape.capacity_factor) {
      const auto before = static_cast<int64_t>(entries.size());
      const int64_t capacity = expert_capacity(lists.tokens, shape);
      drop(entries, capacity, shape.drop_by_position);
      lists.dropped += before - static_cast<int64_t>(entries.size());
      if (shape.pad_to_capacity) fill(entries, capacity, lists.tokens);
    }
    for (const Entry& entry : entries) {
      lists.token.push_back(entry.token);
      lists.place.push_back(entry.place);
    }
    lists.first.push_back(static_cast<int64_t>(lists.token.size()));
  }
  return lists;
}

// Example: lists {expert 0: tokens 0 1, expert 1: token 0}, experts {1, 0}, one copy: rows 0 (token 0), 1 and 2 (tokens
// 0 and 1), so that token 0 has its choices in rows 1 and 0.
ops::RowMap rows_of(const ExpertLists& lists, const std::vector<int64_t>& experts, int64_t copies) {
  int64_t rows = 0;
  for (const int64_t expert : experts) rows += lists.count(expert);
  ops::RowMap map{at::empty({rows}, at::kLong), at::full({lists.tokens, lists.topk * copies}, -1, at::kLong), true};
  auto* token = map.token.mutable_data_ptr<int64_t>();
  auto* row = map.row.mutable_data_ptr<int64_t>();
  std::vector<int64_t> seen(lists.first.size() - 1, 0);  // copies of each expert so far
  int64_t next = 0;
  for (const int64_t expert : experts) {
    const int64_t copy = seen[static_cast<size_t>(expert)]++;
    check(copy < copies, "expert {} occurs more than {} times", expert, copies);
    for (int64_t i = lists.first[expert]; i < lists.first[expert + 1]; ++i, ++next) {
      token[next] = lists.token[i];
      if (lists.place[i] < 0)
        map.every_row_used = false;
      else
        row[(lists.token[i] * lists.topk + lists.place[i]) * copies + copy] = next;
    }
  }
  return map;
}

// On the device by differences of the ends; on the host by counting entries that are not padding.
at::Tensor load(const ExpertLists& lists, at::Device device) {
  if (lists.on_device) return lists.on_device->first.diff().to(device, at::kFloat);
  at::Tensor counts = at::zeros({lists.experts()}, at::kFloat);
  auto* count = counts.mutable_data_ptr<float>();
  for (int64_t expert = 0; expert < counts.size(0); ++expert)
    count[expert] = static_cast<float>(std::count_if(lists.place.begin() + lists.first[expert],
                                                     lists.place.begin() + lists.first[expert + 1],
                                                     [](int64_t place) { return place >= 0; }));
  return ops::to_device(counts, device);
}

}  // namespace megalith::nn
