// One fused projection to q | k | v, then per head: norm, rotation, attention, gate, and the output projection.
// ops::split_qkv does splitting, norms and rotation, in one pass over the projection where it can. Tensor parallelism
// splits the heads, so that attention itself needs no collective over tp (shared_kv.h is the exception for few
// key/value heads); context parallelism is inside context_attention.
//
//   x [t, h] ─ qkv ─► [t, (n + 2g) d/tp] ─ split_qkv ─► q, k, v ─ core ─► [t, n/tp, d] (· σ(gate)) ─ o ─► + residual
//   tp: gather (SP)                                     cp: ring, gather or all-to-all              tp: sum over ranks
//
// Backward runs the same collectives in reverse: gather dy (SP), those of core, sum of dx.
#include "megalith/nn/attention/self_attention.h"

#include <ATen/ATen.h>

#include <tuple>

#include "megalith/base/error.h"
#include "megalith/nn/attention/kv_cache.h"
#include "megalith/nn/attention/shared_kv.h"
#include "megalith/nn/context_parallel/context_attention.h"
#include "megalith/nn/recompute.h"
#include "megalith/ops/attention/attention.h"

namespace megalith::nn {

namespace {

// Returns the heads of one rank; throws ConfigError if they cannot be split.
ops::QkvHeads heads_of_rank(const AttentionShape& shape, int tp) {
  check<ConfigError>(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
                     "{} attention heads cannot share {} key/value heads; use a number of attention heads that is a"
                     " multiple of the key/value heads",
                     shape.heads, shape.kv_heads);
  check<ConfigError>(
      shape.heads % tp == 0,
      "{} attention heads cannot be split over tensor_model_parallel_size {}; use a divisor of the heads", shape.heads,
      tp);
  check<ConfigError>(
      shape.kv_heads % tp == 0 || tp % shape.kv_heads == 0,
      "{} key/value heads cannot be split over tensor_model_parallel_size {}; use a divisor or a multiple of the heads",
      shape.kv_heads, tp);
  check<ConfigError>(shape.kv_heads * shape.head_dim % tp == 0,
                     "{} key/value heads of {} channels cannot be split over tensor_model_parallel_size {}; use a size"
                     " that divides {}",
                     shape.kv_heads, shape.head_dim, tp, shape.kv_heads * shape.head_dim);
  return {shape.heads / tp, std::max<int64_t>(1, shape.kv_heads / tp), shape.head_dim};
}

// Splits off the gates: [t, (query | gate) of each head | k | v] -> [t, queries | k | v] and the gates [t, n, d].
std::pair<at::Tensor, at::Tensor> take_gate(const at::Tensor& projected, const ops::QkvHeads& heads) {
  const int64_t columns = 2 * heads.query * heads.head_dim;
  const at::Tensor both = projected.narrow(1, 0, columns).unflatten(1, {heads.query, 2, heads.head_dim});
  const at::Tensor rest = projected.narrow(1, columns, projected.size(1) - columns);
  return {at::cat({both.select(2, 0).flatten(1), rest}, 1), both.select(2, 1)};
}

// Each rank normalizes its own heads with the same weight, so that the weight's gradient is partial over tp.
std::optional<Norm> head_norm(const ParameterScope& scope, const AttentionShape& shape, const TensorParallel& tp) {
  if (!shape.qk_norm) return std::nullopt;
  return Norm(scope, *shape.qk_norm, /*partial_grad=*/tp.size() > 1, tp.rank());
}

}  // namespace

std::vector<OutputPart> qkv_parts(const AttentionShape& shape) {
  const int64_t q = shape.heads * shape.head_dim, kv = shape.kv_heads * shape.head_dim;
  return {{"q", (shape.output_gate ? 2 : 1) * q}, {"k", kv}, {"v", kv}};
}

SelfAttention::SelfAttention(const ParameterScope& scope, const AttentionShape& shape, int64_t layer, TensorParallel tp,
                             parallel::RngTracker& rng, bool recompute_core, ContextParallel cp)
    : shape_(shape),
      layer_(layer),
      tp_(std::move(tp)),
      cp_(std::move(cp)),
      rng_(rng),
      recompute_core_(recompute_core),
      local_(heads_of_rank(shape, tp_.size())),
      qkv_(scope, "qkv", shape.hidden, qkv_parts(shape), shape.qkv_bias, shape.init, tp_),
      q_norm_(head_norm(scope.child("q_norm"), shape, tp_)),
      k_norm_(head_norm(scope.child("k_norm"), shape, tp_)),
      out_(scope, "o", shape.heads * shape.head_dim, shape.hidden, shape.out_bias, shape.out_init, tp_),
      plans_(scope.attention_plans()) {
  cp_.check_heads(local_.query, local_.key_value);
}

at::Tensor SelfAttention::forward(const at::Tensor& x, const at::Tensor& residual, const LayerInput& input) const {
  at::Tensor projected = qkv_.forward(x);  // [t, (n + 2g) d / tp]
  ops::QkvHeads rows = local_;
  if (shape_.output_gate) rows.query *= 2;  // each query head is followed by its gate
  if (tp_.size() > shape_.kv_heads) projected = exchange_kv(projected, rows, shape_.kv_heads, tp_.group);
  at::Tensor gate;  // [t, n/tp, d]
  if (shape_.output_gate) std::tie(projected, gate) = take_gate(projected, local_);
  std::optional<ops::NormWeights> q_norm, k_norm;
  if (q_norm_) q_norm = q_norm_->weights();
  if (k_norm_) k_norm = k_norm_->weights();
  auto [q, k, v] =
      ops::split_qkv(projected, local_, input.angles, q_norm ? &*q_norm : nullptr, k_norm ? &*k_norm : nullptr);
  projected.reset();  // only the backward of head norms keeps it
  at::Tensor out;     // [t, n/tp, d]
  if (recompute_core_ && input.training) {
    out = recompute([this, input](const TensorList& qkv) { return core(qkv[0], qkv[1], qkv[2], input); }, {q, k, v},
                    shape_.dropout > 0 ? &rng_ : nullptr);
  } else {
    out = core(q, k, v, input);
  }
  if (gate.defined()) out = out * gate.sigmoid();
  return out_.forward(out.reshape({out.size(0), -1}), residual);
}

at::Tensor SelfAttention::core(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const LayerInput& input) const {
  ops::AttentionOptions options{.scale = shape_.scale, .window = shape_.window, .plans = plans_};
  if (input.cache) {
    const auto [keys, values] = input.cache->append(layer_, k, v);
    return ops::attention(q, keys, values, input.layout, ops::SequenceLayout::dense(1, keys.size(0)), options);
  }
  if (!input.training || shape_.dropout == 0) return context_attention(q, k, v, input.layout, options, cp_);
  const auto fork = rng_.fork();  // tp ranks hold different heads and so need different masks
  options.dropout = shape_.dropout;
  options.generator = rng_.generator();
  return context_attention(q, k, v, input.layout, options, cp_);
}

}  // namespace megalith::nn
