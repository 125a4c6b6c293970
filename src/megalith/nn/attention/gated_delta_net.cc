// The layer is a chain of ATen operations around the two of ops/attention/delta_rule.h; autograd differentiates all of
// it. With g = -exp(a_log) · softplus(a + dt_bias) and β = sigmoid(b) per token and value head, the state S [d, e] is
//
//   S ← exp(g) S;   S ← S + k ⊗ β (v − Sᵀ k);   out = Sᵀ q
//
// Heads are independent, so that tensor parallelism needs no collective between the two projections. In generation the
// KvCache keeps S and the last kernel - 1 inputs of the convolution instead of keys and values.
#include "megalith/nn/attention/gated_delta_net.h"

#include <ATen/ATen.h>

#include <cmath>

#include "megalith/base/error.h"
#include "megalith/nn/attention/kv_cache.h"
#include "megalith/ops/attention/delta_rule.h"

namespace megalith::nn {

namespace {

// Checked in the initializer list, before anything is split by these numbers.
const DeltaNetShape& checked(const DeltaNetShape& shape, int tp) {
  check<ConfigError>(shape.key_heads > 0 && shape.value_heads % shape.key_heads == 0,
                     "{} value heads of linear attention cannot share {} key heads; use a number of value heads that is"
                     " a multiple of the key heads",
                     shape.value_heads, shape.key_heads);
  check<ConfigError>(shape.key_heads % tp == 0,
                     "{} key heads of linear attention cannot be split over tensor_model_parallel_size {}; use a"
                     " divisor of the heads",
                     shape.key_heads, tp);
  return shape;
}

// A tensor whose rows are split over tp in equal blocks.
ParameterPart dealt(const std::string& name, std::vector<int64_t> shape, int64_t row, const TensorParallel& tp) {
  const auto [first, count] = tp.share(shape[0]);
  std::vector<int64_t> offset(shape.size(), 0), extent = shape;
  offset[0] = first;
  extent[0] = count;
  return {name, std::move(shape), std::move(offset), std::move(extent), row};
}

// One parameter for the convolutions of q, k and v, which are separate tensors because tp splits each by its heads.
Parameter& add_conv(const ParameterScope& scope, const DeltaNetShape& shape, const TensorParallel& tp) {
  const int64_t keys = shape.key_heads * shape.key_dim, values = shape.value_heads * shape.value_dim;
  ParameterSpec conv{.name = "conv.weight", .init = shape.init, .split_over_tp = tp.size() > 1};
  int64_t row = 0;
  for (const auto& [name, channels] :
       {std::pair("conv_q", keys), std::pair("conv_k", keys), std::pair("conv_v", values)}) {
    conv.parts.push_back(dealt(std::string(name) + ".weight", {channels, shape.conv_kernel}, row, tp));
    row += channels / tp.size();
  }
  return scope.add(std::move(conv), {row, shape.conv_kernel});
}

// A parameter with one number per value head.
Parameter& add_by_head(const ParameterScope& scope, const char* name, const DeltaNetShape& shape, Init init,
                       const TensorParallel& tp) {
  ParameterSpec spec{.name = name, .init = init, .split_over_tp = tp.size() > 1};
  spec.parts.push_back(dealt(name, {shape.value_heads}, 0, tp));
  return scope.add(std::move(spec), {shape.value_heads / tp.size()});
}

// Returns x / |x| of each head, with Qwen's epsilon.
at::Tensor unit_length(const at::Tensor& x) { return x * (x.square().sum(-1, /*keepdim=*/true) + 1e-6).rsqrt(); }

}  // namespace

std::vector<OutputPart> in_parts(const DeltaNetShape& shape) {
  return {{"in_qkvz", 2 * (shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim)},
          {"in_ba", 2 * shape.value_heads}};
}

GatedDeltaNet::GatedDeltaNet(const ParameterScope& scope, const DeltaNetShape& shape, int64_t layer, TensorParallel tp)
    : shape_(checked(shape, tp.size())),
      layer_(layer),
      key_heads_(shape.key_heads / tp.size()),
      value_heads_(shape.value_heads / tp.size()),
      in_(scope, "in", shape.hidden, in_parts(shape), false, shape.init, tp),
      conv_(&add_conv(scope, shape, tp)),
      a_log_(&add_by_head(scope, "a_log", shape, Init::normal(1), tp)),
      dt_bias_(&add_by_head(scope, "dt_bias", shape, Init::ones(), tp)),
      norm_(scope.child("norm"), {ops::NormKind::kRms, shape.value_dim, shape.norm_epsilon},
            /*partial_grad=*/tp.size() > 1, tp.rank()),
      out_(scope, "out", shape.value_heads * shape.value_dim, shape.hidden, false, shape.out_init, tp) {}

GatedDeltaNet::Projected GatedDeltaNet::project(const at::Tensor& x) const {
  const int64_t d = shape_.key_dim, e = shape_.value_dim, m = key_heads_, n = value_heads_;
  const at::Tensor all = in_.forward(x);
  // The weight is ordered by key head, [q | k | v's | z's] and [b's | a's]; the operations below want all queries, then
  // all keys, then all values.
  const at::Tensor qkvz = all.narrow(1, 0, 2 * (m * d + n * e)).unflatten(1, {m, 2 * d + 2 * n / m * e});
  const at::Tensor ba = all.narrow(1, 2 * (m * d + n * e), 2 * n).unflatten(1, {m, 2 * n / m});
  const auto part = [](const at::Tensor& of, int64_t first, int64_t count) {
    return of.narrow(2, first, count).flatten(1);
  };
  const int64_t values = n / m * e;
  return {.qkv = at::cat({part(qkvz, 0, d), part(qkvz, d, d), part(qkvz, 2 * d, values)}, 1),
          .z = part(qkvz, 2 * d + values, values).unflatten(1, {n, e}),
          .b = part(ba, 0, n / m),
          .a = part(ba, n / m, n / m)};
}

at::Tensor GatedDeltaNet::convolve(const at::Tensor& qkv, const LayerInput& input) const {
  if (!input.cache) return at::silu(ops::causal_conv(qkv, conv_->value, input.layout));
  // Inputs of the preceding tokens that the convolution still reaches: at most kernel - 1.
  at::Tensor& seen = input.cache->recurrent(layer_).inputs;
  const at::Tensor all = seen.defined() ? at::cat({seen, qkv}, 0) : qkv;
  const at::Tensor y = ops::causal_conv(all, conv_->value, ops::SequenceLayout::dense(1, all.size(0)));
  const int64_t kept = std::min(shape_.conv_kernel - 1, all.size(0));
  seen = all.narrow(0, all.size(0) - kept, kept).clone();
  return at::silu(y.narrow(0, all.size(0) - qkv.size(0), qkv.size(0)));
}

at::Tensor GatedDeltaNet::core(const at::Tensor& qkv, const at::Tensor& b, const at::Tensor& a,
                               const LayerInput& input) const {
  const int64_t d = shape_.key_dim, m = key_heads_, n = value_heads_;
  // The recurrence accumulates over the whole sequence: fp32 at least.
  const at::ScalarType acc = qkv.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto heads = [&](int64_t first) {  // repeats each key head for the n/m value heads that share it
    return unit_length(qkv.narrow(1, first, m * d).unflatten(1, {m, d}).to(acc)).repeat_interleave(n / m, 1);
  };
  const ops::DeltaRuleInput in{
      .q = heads(0) / std::sqrt(static_cast<double>(d)),
      .k = heads(m * d),
      .v = qkv.narrow(1, 2 * m * d, n * shape_.value_dim).unflatten(1, {n, shape_.value_dim}),
      .log_decay = -a_log_->value.to(acc).exp() * at::softplus(a.to(acc) + dt_bias_->value.to(acc)),
      .beta = b.sigmoid()};
  if (!input.cache) return ops::gated_delta_rule(in, input.layout).out;
  at::Tensor& state = input.cache->recurrent(layer_).state;
  const auto result = ops::gated_delta_rule(in, ops::SequenceLayout::dense(1, qkv.size(0)), state);
  state = result.state;
  return result.out;
}

at::Tensor GatedDeltaNet::forward(const at::Tensor& x, const at::Tensor& residual, const LayerInput& input) const {
  const Projected projected = project(x);
  const at::Tensor mixed = core(convolve(projected.qkv, input), projected.b, projected.a, input);
  const at::Tensor gate = at::silu(projected.z.to(mixed.scalar_type()));
  const at::Tensor gated = norm_.forward(mixed.to(x.scalar_type())).to(mixed.scalar_type()) * gate;  // [t, n, e]
  return out_.forward(gated.to(x.scalar_type()).flatten(1), residual);
}

}  // namespace megalith::nn
