// Three steps: compress() projects tokens to latents, expand() projects latents to heads, core() is attention. They are
// separate because recomputation can start at either boundary: with `up_proj` only the latents are kept, with `core`
// the heads. With both, one recompute() around expand and core repeats them; with `up_proj` alone the heads are
// discarded after attention has read them, and expanded again just before its backward.
//
//   step       collectives, forward                      backward
//   compress   rotary key: gather over tokens (SP)       reduce-scatter; without SP an all-reduce of its gradient
//   expand     latents: gathered by q_up and kv_up (SP)  reduced by the same layers
//   core       those of context_attention                the same, reversed
//   out_       sum over the ranks                        gather of dy (SP)
#include "megalith/nn/attention/latent_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "megalith/base/error.h"
#include "megalith/nn/attention/kv_cache.h"
#include "megalith/nn/context_parallel/context_attention.h"
#include "megalith/nn/recompute.h"
#include "megalith/nn/tensor_parallel/mappings.h"
#include "megalith/ops/attention/attention.h"

namespace megalith::nn {

namespace {

const LatentAttentionShape& checked(const LatentAttentionShape& shape, int tp) {
  check<ConfigError>(
      shape.heads % tp == 0,
      "{} attention heads cannot be split over tensor_model_parallel_size {}; use a divisor of the heads", shape.heads,
      tp);
  return shape;
}

// Latents are replicated or split by tokens like the residual stream: the same rule for their gradients.
Norm latent_norm(const ParameterScope& scope, int64_t size, const LatentAttentionShape& shape,
                 const TensorParallel& tp) {
  return Norm(scope, {ops::NormKind::kRms, size, shape.latent_epsilon}, tp.splits_tokens(), tp.rank());
}

}  // namespace

std::vector<OutputPart> down_parts(const LatentAttentionShape& shape) {
  std::vector<OutputPart> parts;
  if (shape.q_rank > 0) parts.push_back({"q_down", shape.q_rank});
  parts.push_back({"kv_down", shape.kv_rank + shape.rotary_dim});
  return parts;
}

std::vector<OutputPart> q_up_parts(const LatentAttentionShape& shape) {
  return {{shape.q_rank > 0 ? "q_up" : "q", shape.heads * (shape.nope_dim + shape.rotary_dim)}};
}

std::vector<OutputPart> kv_up_parts(const LatentAttentionShape& shape) {
  return {{"kv_up", shape.heads * (shape.nope_dim + shape.value_dim)}};
}

LatentAttention::LatentAttention(const ParameterScope& scope, const LatentAttentionShape& shape, int64_t layer,
                                 TensorParallel tp, parallel::RngTracker& rng, LatentRecompute recompute,
                                 ContextParallel cp)
    : shape_(checked(shape, tp.size())),
      layer_(layer),
      tp_(std::move(tp)),
      cp_(std::move(cp)),
      rng_(rng),
      recompute_(recompute),
      down_(scope, "down", shape.hidden, down_parts(shape), shape.bias, shape.init, tp_),
      kv_norm_(latent_norm(scope.child("kv_latent_norm"), shape.kv_rank, shape, tp_)),
      q_up_(scope, shape.q_rank > 0 ? "q_up" : "q", shape.q_rank > 0 ? shape.q_rank : shape.hidden, q_up_parts(shape),
            false, shape.init, tp_),
      kv_up_(scope, "kv_up", shape.kv_rank, kv_up_parts(shape), false, shape.init, tp_),
      out_(scope, "o", shape.heads * shape.value_dim, shape.hidden, shape.bias, shape.out_init, tp_),
      plans_(scope.attention_plans()) {
  cp_.check_heads(shape.heads / tp_.size(), shape.heads / tp_.size());
  if (shape.q_rank > 0) q_norm_ = latent_norm(scope.child("q_latent_norm"), shape.q_rank, shape, tp_);
}

at::Tensor LatentAttention::forward(const at::Tensor& x, const at::Tensor& residual, const LayerInput& input) const {
  const Latents latents = compress(x);
  at::Tensor out;
  if (recompute_.core && recompute_.up_proj && input.training) {
    out = recompute(
        [this, input](const TensorList& kept) {
          return attend({kept[0], kept[1], kept[2]}, input);
        },
        {latents.q, latents.kv, latents.key}, shape_.dropout > 0 ? &rng_ : nullptr);
  } else {
    out = attend(latents, input);
  }
  return out_.forward(out.reshape({out.size(0), -1}), residual);
}

LatentAttention::Latents LatentAttention::compress(const at::Tensor& x) const {
  const at::Tensor all = down_.forward(x);
  const at::Tensor key = all.narrow(1, shape_.q_rank + shape_.kv_rank, shape_.rotary_dim);
  return {.q = q_norm_ ? q_norm_->forward(all.narrow(1, 0, shape_.q_rank)) : x,
          .kv = kv_norm_.forward(all.narrow(1, shape_.q_rank, shape_.kv_rank)),
          // Each rank continues with its own heads, so the gradients on the ranks are parts of the true one.
          .key = tp_.splits_tokens() ? gather_tokens(key, tp_.group) : copy_to_ranks(key, tp_.group)};
}

// All heads share one rotated key: it is expanded, not copied per head, until the concatenation.
LatentAttention::Heads LatentAttention::expand(const Latents& latents, const LayerInput& input) const {
  const int64_t n = shape_.heads / tp_.size(), c = shape_.nope_dim, r = shape_.rotary_dim;
  const at::Tensor q = q_up_.forward(latents.q).unflatten(1, {n, c + r});
  const at::Tensor kv = kv_up_.forward(latents.kv).unflatten(1, {n, c + shape_.value_dim});
  const at::Tensor key = ops::apply_rope(latents.key.unsqueeze(1), input.angles);  // [t, 1, r]
  return {.q = at::cat({q.narrow(2, 0, c), ops::apply_rope(q.narrow(2, c, r), input.angles)}, 2),
          .k = at::cat({kv.narrow(2, 0, c), key.expand({-1, n, r})}, 2),
          .v = kv.narrow(2, c, shape_.value_dim).clone(at::MemoryFormat::Contiguous)};
}

at::Tensor LatentAttention::attend(const Latents& latents, const LayerInput& input) const {
  const Heads heads = expand(latents, input);
  if (recompute_.core && !recompute_.up_proj && input.training)
    return recompute(
        [this, input](const TensorList& in) {
          return core({in[0], in[1], in[2]}, input);
        },
        {heads.q, heads.k, heads.v}, shape_.dropout > 0 ? &rng_ : nullptr);
  at::Tensor out = core(heads, input);
  if (!recompute_.up_proj || recompute_.core || !input.training || !at::GradMode::is_enabled()) return out;
  // One expansion yields q, k and v again: the first of the three hooks runs it, and each takes its own tensor.
  const auto expanded = std::make_shared<std::optional<Heads>>();
  const auto take =
      [this, expanded, input,
       latents = Latents{latents.q.detach(), latents.kv.detach(), latents.key.detach()}](at::Tensor Heads::*which) {
        if (!*expanded) *expanded = expand(latents, input);
        at::Tensor own = std::exchange((**expanded).*which, at::Tensor());
        if (!(*expanded)->q.defined() && !(*expanded)->k.defined() && !(*expanded)->v.defined()) expanded->reset();
        return own;
      };
  discard_until_backward(
      heads.q, [take] { return take(&Heads::q); }, out);
  discard_until_backward(
      heads.k, [take] { return take(&Heads::k); }, out);
  discard_until_backward(
      heads.v, [take] { return take(&Heads::v); }, out);
  return out;
}

at::Tensor LatentAttention::core(const Heads& heads, const LayerInput& input) const {
  ops::AttentionOptions options{.scale = shape_.scale, .plans = plans_};
  if (input.cache) {
    const auto [keys, values] = input.cache->append(layer_, heads.k, heads.v);
    return ops::attention(heads.q, keys, values, input.layout, ops::SequenceLayout::dense(1, keys.size(0)), options);
  }
  if (!input.training || shape_.dropout == 0)
    return context_attention(heads.q, heads.k, heads.v, input.layout, options, cp_);
  const auto fork = rng_.fork();  // tp ranks hold different heads and so need different masks
  options.dropout = shape_.dropout;
  options.generator = rng_.generator();
  return context_attention(heads.q, heads.k, heads.v, input.layout, options, cp_);
}

}  // namespace megalith::nn
