// The layer is a chain of ATen operations around the two of ops/attention/delta_rule.h; autograd differentiates all of
// it. With g = -exp(a_log) · softplus(a + dt_bias) and β = sigmoid(b) per token and value head, the state S [d, e] is
//
//   S ← exp(g) S;   S ← S + k ⊗ β (v − Sᵀ k);   out = Sᵀ q
//
// Heads are independent, so that tensor parallelism needs no collective between the two projections. In generation the
// KvCache keeps S and the last kernel - 1 inputs of the convolution instead of keys and values.
//
// Context parallelism, t tokens and m key heads on each of cp ranks:
//
//   projection [t, m, …] ── q k v b a ──► to_heads ─► [t·cp, m/cp, …] ─► convolution, delta rule ─► to_tokens ─┐
//                        └─ z ─────────────────────────────────────────────────────────────► norm · SiLU(z) ◄──┘
//
// The columns that travel are ordered by key head, so that those of a rank are adjacent. The gate and the
// norm work on each token and head alone and stay with the rank's own tokens: z does not travel.
#include "megalith/nn/attention/gated_delta_net.h"

#include <ATen/ATen.h>

#include <cmath>

#include "megalith/base/error.h"
#include "megalith/nn/attention/kv_cache.h"
#include "megalith/nn/context_parallel/head_all_to_all_internal.h"
#include "megalith/nn/context_parallel/slice.h"
#include "megalith/ops/attention/delta_rule.h"

namespace megalith::nn {

namespace {

// Checked in the initializer list, before anything is split by these numbers.
const DeltaNetShape& checked(const DeltaNetShape& shape, int tp, int cp) {
  check<ConfigError>(shape.key_heads > 0 && shape.value_heads % shape.key_heads == 0,
                     "{} value heads of linear attention cannot share {} key heads; use a number of value heads that is"
                     " a multiple of the key heads",
                     shape.value_heads, shape.key_heads);
  check<ConfigError>(shape.key_heads % tp == 0,
                     "{} key heads of linear attention cannot be split over tensor_model_parallel_size {}; use a"
                     " divisor of the heads",
                     shape.key_heads, tp);
  const std::string problem = context_parallel_problem(shape, tp, cp);
  check<ConfigError>(problem.empty(), "{}", problem);
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

std::string context_parallel_problem(const DeltaNetShape& shape, int tp, int cp) {
  if (shape.key_heads % (int64_t{tp} * cp) == 0) return {};
  return fmt::format(
      "context_parallel_size {} cannot split the {} key heads of linear attention that a rank has with"
      " tensor_model_parallel_size {}: linear attention trades tokens for heads; use sizes whose product divides the {}"
      " key heads",
      cp, shape.key_heads / tp, tp, shape.key_heads);
}

std::vector<OutputPart> in_parts(const DeltaNetShape& shape) {
  const int64_t keys = shape.key_heads * shape.key_dim, values = shape.value_heads * shape.value_dim;
  if (shape.apart)
    return {{"in_q", keys},
            {"in_k", keys},
            {"in_v", values},
            {"in_z", values},
            {"in_b", shape.value_heads},
            {"in_a", shape.value_heads}};
  return {{"in_qkvz", 2 * (keys + values)}, {"in_ba", 2 * shape.value_heads}};
}

GatedDeltaNet::GatedDeltaNet(const ParameterScope& scope, const DeltaNetShape& shape, int64_t layer, TensorParallel tp,
                             std::optional<comm::Group> cp)
    : shape_(checked(shape, tp.size(), cp ? cp->size() : 1)),
      layer_(layer),
      cp_(cp && cp->size() > 1 ? std::move(cp) : std::nullopt),
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
  const int64_t share = n / m, values = share * e;  // value heads of a key head, and their channels
  const at::Tensor all = in_.forward(x);
  int64_t used = 0;
  // The next columns of all key heads together.
  const auto next = [&](int64_t columns_of_head) {
    const at::Tensor part = all.narrow(1, used, m * columns_of_head).unflatten(1, {m, columns_of_head});
    used += m * columns_of_head;
    return part;
  };
  Projected out;
  at::Tensor gate;
  if (shape_.apart) {
    for (at::Tensor* part : {&out.q, &out.k}) *part = next(d);
    for (at::Tensor* part : {&out.v, &gate}) *part = next(values);
    for (at::Tensor* part : {&out.b, &out.a}) *part = next(share);
  } else {
    const at::Tensor qkvz = next(2 * d + 2 * values), ba = next(2 * share);
    out = {.q = qkvz.narrow(2, 0, d),
           .k = qkvz.narrow(2, d, d),
           .v = qkvz.narrow(2, 2 * d, values),
           .b = ba.narrow(2, 0, share),
           .a = ba.narrow(2, share, share)};
    gate = qkvz.narrow(2, 2 * d + values, values);
  }
  out.z = gate.flatten(1).unflatten(1, {n, e});
  return out;
}

GatedDeltaNet::Mixed GatedDeltaNet::to_mixed(const Projected& projected, const ops::SequenceLayout& slice) const {
  std::vector<at::Tensor> parts{projected.q, projected.k, projected.v, projected.b, projected.a};
  if (cp_) {  // one all-to-all carries everything
    const at::Tensor all = at::cat(parts, 2);
    const at::Tensor traded =
        to_heads(all.flatten(1), slice, *cp_).unflatten(1, {key_heads_ / cp_->size(), all.size(2)});
    int64_t used = 0;
    for (at::Tensor& part : parts) {
      const int64_t columns = part.size(2);
      part = traded.narrow(2, used, columns);
      used += columns;
    }
  }
  for (at::Tensor& part : parts) part = part.flatten(1);
  // Convolution and recurrence want all queries, then all keys, then all values.
  return {.qkv = at::cat({parts[0], parts[1], parts[2]}, 1), .b = parts[3], .a = parts[4]};
}

at::Tensor GatedDeltaNet::own_rows(const Parameter& parameter, std::initializer_list<int64_t> counts) const {
  if (!cp_) return parameter.value;
  std::vector<at::Tensor> rows;
  int64_t first = 0;
  for (const int64_t count : counts) {
    const int64_t own = count / cp_->size();
    rows.push_back(parameter.value.narrow(0, first + cp_->rank() * own, own));
    first += count;
  }
  return at::cat(rows);
}

at::Tensor GatedDeltaNet::convolve(const at::Tensor& qkv, const LayerInput& input) const {
  const int64_t keys = key_heads_ * shape_.key_dim, values = value_heads_ * shape_.value_dim;
  if (!input.cache) return at::silu(ops::causal_conv(qkv, own_rows(*conv_, {keys, keys, values}), input.layout));
  // Inputs of the preceding tokens that the convolution still reaches: at most kernel - 1.
  at::Tensor& seen = input.cache->recurrent(layer_).inputs;
  const at::Tensor all = seen.defined() ? at::cat({seen, qkv}, 0) : qkv;
  const at::Tensor y = ops::causal_conv(all, conv_->value, ops::SequenceLayout::dense(1, all.size(0)));
  const int64_t kept = std::min(shape_.conv_kernel - 1, all.size(0));
  seen = all.narrow(0, all.size(0) - kept, kept).clone();
  return at::silu(y.narrow(0, all.size(0) - qkv.size(0), qkv.size(0)));
}

at::Tensor GatedDeltaNet::core(const Mixed& mixed, const LayerInput& input) const {
  const at::Tensor& qkv = mixed.qkv;
  const int64_t d = shape_.key_dim, n = mixed.b.size(1), m = n / (value_heads_ / key_heads_);
  // The recurrence accumulates over the whole sequence: fp32 at least.
  const at::ScalarType acc = qkv.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto heads = [&](int64_t first) {  // repeats each key head for the n/m value heads that share it
    return unit_length(qkv.narrow(1, first, m * d).unflatten(1, {m, d}).to(acc)).repeat_interleave(n / m, 1);
  };
  const ops::DeltaRuleInput in{.q = heads(0) / std::sqrt(static_cast<double>(d)),
                               .k = heads(m * d),
                               .v = qkv.narrow(1, 2 * m * d, n * shape_.value_dim).unflatten(1, {n, shape_.value_dim}),
                               .log_decay = -own_rows(*a_log_, {value_heads_}).to(acc).exp() *
                                            at::softplus(mixed.a.to(acc) + own_rows(*dt_bias_, {value_heads_}).to(acc)),
                               .beta = mixed.b.sigmoid()};
  if (!input.cache) return ops::gated_delta_rule(in, input.layout).out;
  at::Tensor& state = input.cache->recurrent(layer_).state;
  const auto result = ops::gated_delta_rule(in, ops::SequenceLayout::dense(1, qkv.size(0)), state);
  state = result.state;
  return result.out;
}

at::Tensor GatedDeltaNet::mix(const Projected& projected, const LayerInput& input) const {
  LayerInput whole = input;
  if (cp_) whole.layout = join_slices(input.layout, cp_->size());
  Mixed mixed = to_mixed(projected, input.layout);
  mixed.qkv = convolve(mixed.qkv, whole);
  const at::Tensor out = core(mixed, whole).to(projected.z.scalar_type());
  if (!cp_) return out;
  return to_tokens(out.flatten(1), input.layout, *cp_).unflatten(1, {value_heads_, shape_.value_dim});
}

at::Tensor GatedDeltaNet::forward(const at::Tensor& x, const at::Tensor& residual, const LayerInput& input) const {
  check(!cp_ || !input.cache, "linear attention over context-parallel ranks has no cache");
  const Projected projected = project(x);
  const at::Tensor mixed = norm_.forward(mix(projected, input));  // [t, n, e]
  const at::ScalarType acc = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor gated = mixed.to(acc) * at::silu(projected.z.to(acc));
  return out_.forward(gated.to(x.scalar_type()).flatten(1), residual);
}

}  // namespace megalith::nn
