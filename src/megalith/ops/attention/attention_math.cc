// The reference: scores and probabilities in plain ATen operations in fp32, one sequence at a time and, where it is
// long, one slice of its queries at a time, so that the scores in memory stay within kMostScores.
//
//   S = scale Q Kᵀ,  P = softmax(S),  O = P V
//   dV = Pᵀ dO,  dP = dO Vᵀ,  dS = P (dP - delta) scale,  delta = Σ_j P dP = Σ dO·O,  dQ = dS K,  dK = dSᵀ Q
#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "megalith/ops/attention/attention_internal.h"

namespace megalith::ops {

namespace {

// Legend: s queries and u keys of one sequence, r = n/g query heads per key/value head.
// A key/value head with its r query heads is one matrix product with r·s rows, so that k and v are never repeated and
// their gradients are summed over the group by the product itself.

at::ScalarType compute_type(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// [s, n, d] -> [g, r·s, d]
at::Tensor by_group(const at::Tensor& x, int64_t groups) {
  const int64_t s = x.size(0), r = x.size(1) / groups, d = x.size(2);
  return x.to(compute_type(x)).reshape({s, groups, r, d}).permute({1, 2, 0, 3}).reshape({groups, r * s, d});
}

// [g, r·s, d] -> [s, n, d]
at::Tensor by_token(const at::Tensor& x, int64_t s) {
  const int64_t groups = x.size(0), r = x.size(1) / s, d = x.size(2);
  return x.reshape({groups, r, s, d}).permute({2, 0, 1, 3}).reshape({s, groups * r, d});
}

// Some queries of one sequence of a call, with all of its keys.
struct Slice {
  int64_t query, queries;  // first of the call, and their number
  int64_t place;           // index of the first query's own key
  int64_t key, keys;
  at::Tensor of_queries(const at::Tensor& x) const { return x.narrow(0, query, queries); }
  at::Tensor of_keys(const at::Tensor& x) const { return x.narrow(0, key, keys); }
};

// Returns the slices of each sequence.
std::vector<std::vector<Slice>> slices_of(const AttentionCall& call) {
  std::vector<std::vector<Slice>> all;
  const auto &q = call.queries.cumulative(), &k = call.keys.cumulative();
  for (size_t i = 0; i + 1 < q.size(); ++i) {
    const int64_t queries = q[i + 1] - q[i], keys = k[i + 1] - k[i];
    const int64_t most = std::max<int64_t>(kMostScores / std::max<int64_t>(call.q.size(1) * keys, 1), 1);
    auto& slices = all.emplace_back();
    for (int64_t first = 0; first < queries; first += most)
      slices.push_back({q[i] + first, std::min(most, queries - first), keys - queries + first, k[i], keys});
  }
  return all;
}

// Returns the scores [g, r·s, u], -inf where the mask hides them.
at::Tensor scores_of(const AttentionCall& call, const Slice& s) {
  const int64_t groups = call.k.size(1);
  const at::Tensor q = by_group(s.of_queries(call.q), groups), k = by_group(s.of_keys(call.k), groups);
  at::Tensor scores = at::bmm(q, k.transpose(1, 2)).mul_(call.options.scale);
  if (!call.options.causal) return scores;
  const auto places = call.q.options().dtype(at::kLong);
  const at::Tensor i = at::arange(s.place, s.place + s.queries, places).unsqueeze(1);  // [s, 1]
  const at::Tensor j = at::arange(s.keys, places);                                     // [u]
  at::Tensor hidden = j > i;                                                           // [s, u]
  if (call.options.window > 0) hidden.logical_or_(j <= i - call.options.window);
  scores.view({groups, -1, s.queries, s.keys}).masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  return scores;
}

// Adds to a sum that may not exist yet.
void accumulate(at::Tensor& sum, at::Tensor value) {
  if (sum.defined())
    sum.add_(value);
  else
    sum = std::move(value);
}

}  // namespace

KernelResult attention_math_forward(const AttentionCall& call) {
  const int64_t t = call.q.size(0), n = call.q.size(1), groups = call.k.size(1);
  const double dropout = call.options.dropout;
  KernelResult result{.out = at::empty({t, n, call.v.size(2)}, call.q.options()),
                      .log_sum_exp = at::empty({n, t}, call.q.options().dtype(compute_type(call.q)))};
  for (const auto& sequence : slices_of(call))
    for (const Slice& s : sequence) {
      const at::Tensor scores = scores_of(call, s);
      const at::Tensor stats = at::logsumexp(scores, -1, /*keepdim=*/true);  // [g, r·s, 1]
      at::Tensor p = at::exp(scores - stats);
      if (dropout > 0) {
        at::Tensor kept =
            at::empty(p.sizes(), p.options().dtype(at::kBool)).bernoulli_(1 - dropout, call.options.generator);
        p = p * kept / (1 - dropout);
        result.dropout_state.push_back(kept);
      }
      const at::Tensor v = by_group(s.of_keys(call.v), groups);
      s.of_queries(result.out).copy_(by_token(at::bmm(p, v), s.queries));
      result.log_sum_exp.narrow(1, s.query, s.queries).copy_(stats.view({n, s.queries}));
    }
  return result;
}

AttentionGrads attention_math_backward(const AttentionCall& call, const at::Tensor& grad_out,
                                       const KernelResult& result) {
  const int64_t groups = call.k.size(1);
  const double dropout = call.options.dropout;
  const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
  AttentionGrads grads{like(call.q), like(call.k), like(call.v)};
  size_t masks = 0;  // masks of dropout used so far
  for (const auto& sequence : slices_of(call)) {
    at::Tensor grad_k, grad_v;  // sums over the slices of a sequence, [g, u, d] and [g, u, e]
    for (const Slice& s : sequence) {
      const at::Tensor stats = result.log_sum_exp.narrow(1, s.query, s.queries).reshape({groups, -1, 1});
      const at::Tensor p = at::exp(scores_of(call, s) - stats);  // [g, r·s, u]
      const at::Tensor q = by_group(s.of_queries(call.q), groups), k = by_group(s.of_keys(call.k), groups);
      const at::Tensor v = by_group(s.of_keys(call.v), groups), out = by_group(s.of_queries(result.out), groups);
      const at::Tensor grad = by_group(s.of_queries(grad_out), groups);  // [g, r·s, e]
      at::Tensor grad_p = at::bmm(grad, v.transpose(1, 2));
      at::Tensor dropped = p;
      if (dropout > 0) {
        const at::Tensor& kept = result.dropout_state[masks++];
        dropped = p * kept / (1 - dropout);
        grad_p = grad_p * kept / (1 - dropout);
      }
      // Σ_j p_j dp_j equals Σ grad·out, with dropout or without.
      const at::Tensor delta = (grad * out).sum(-1, /*keepdim=*/true);
      const at::Tensor grad_scores = p * (grad_p - delta) * call.options.scale;
      s.of_queries(grads.q).copy_(by_token(at::bmm(grad_scores, k), s.queries));
      accumulate(grad_k, at::bmm(grad_scores.transpose(1, 2), q));
      accumulate(grad_v, at::bmm(dropped.transpose(1, 2), grad));
    }
    const Slice& any = sequence.front();
    any.of_keys(grads.k).copy_(by_token(grad_k, any.keys));
    any.of_keys(grads.v).copy_(by_token(grad_v, any.keys));
  }
  return grads;
}

}  // namespace megalith::ops
