#include <ATen/ATen.h>

#include <cmath>

#include "tests/support/reference_parts.h"
#include "tests/support/reference_rope.h"

namespace megalith::testing {

namespace {

std::string layer_name(int64_t layer, const char* part) {
  return "model.layers." + std::to_string(layer) + "." + part + ".";
}

// [b, s, n d] -> [b, n, s, d]
at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
}

// Neighbours rotate: brought into halves first, for queries and keys alike, which leaves their products as they are.
at::Tensor rotate_neighbours(const at::Tensor& x, const std::pair<at::Tensor, at::Tensor>& angles) {
  const at::Tensor pairs = x.unflatten(-1, {x.size(-1) / 2, 2}).transpose(-1, -2);
  return reference_rotate(pairs.reshape(x.sizes()), angles);
}

// Rotates the first channels of each head as the configuration says; without angles, none.
at::Tensor rotate_heads(const at::Tensor& x, const ReferenceConfig& config,
                        const std::pair<at::Tensor, at::Tensor>& angles) {
  if (!angles.first.defined()) return x;
  if (!config.rope.interleaved) return reference_rotate(x, angles);
  const int64_t rotated = angles.first.size(-1);
  return at::cat({rotate_neighbours(x.narrow(-1, 0, rotated), angles), x.narrow(-1, rotated, x.size(-1) - rotated)},
                 -1);
}

double latent_scale(const ReferenceConfig& config) {
  double scale = 1 / std::sqrt(static_cast<double>(config.latent->nope + config.latent->rope));
  if (config.rope.type == "default" || config.rope.mscale_all_dim.value_or(0) == 0) return scale;
  const double factor =
      config.rope.factor <= 1 ? 1 : 0.1 * *config.rope.mscale_all_dim * std::log(config.rope.factor) + 1;
  return scale * factor * factor;
}

// [.., d], of length 1
at::Tensor normalized(const at::Tensor& x) { return x * (x.pow(2).sum(-1, /*keepdim=*/true) + 1e-6).rsqrt(); }

// Causal convolution of each channel over the tokens of one sequence. x [b, s, c], weight [c, 1, k].
at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight) {
  const int64_t kernel = weight.size(2), s = x.size(1);
  at::Tensor sum = at::zeros_like(x);
  for (int64_t k = 0; k < kernel; ++k) {
    const int64_t back = kernel - 1 - k;
    if (back >= s) continue;
    const at::Tensor moved = at::constant_pad_nd(x.slice(1, 0, s - back), {0, 0, back, 0});
    sum = sum + moved * weight.select(2, k).select(1, 0);
  }
  return sum * sum.sigmoid();
}

// The delta rule token by token. q, k [b, s, n, d]; v [b, s, n, e]; decay (log) and beta [b, s, n] -> [b, s, n, e].
at::Tensor delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& decay,
                      const at::Tensor& beta) {
  at::Tensor state = at::zeros({q.size(0), q.size(2), q.size(3), v.size(3)}, q.options());
  std::vector<at::Tensor> out;
  for (int64_t t = 0; t < q.size(1); ++t) {
    const at::Tensor key = k.select(1, t).unsqueeze(-1);
    state = state * decay.select(1, t).exp().unsqueeze(-1).unsqueeze(-1);
    const at::Tensor change = (v.select(1, t) - (state * key).sum(-2)) * beta.select(1, t).unsqueeze(-1);
    state = state + key * change.unsqueeze(-2);
    out.push_back((state * q.select(1, t).unsqueeze(-1)).sum(-2));
  }
  return at::stack(out, 1);
}

// One sequence of each row. y [b, s, h]
at::Tensor delta_net_of_sequence(const ReferenceParts& parts, const at::Tensor& y, const std::string& name) {
  const ReferenceDeltaNet& sizes = *parts.config().delta_net;
  const int64_t repeat = sizes.value_heads / sizes.key_heads, values = repeat * sizes.value_dim;
  const int64_t b = y.size(0), s = y.size(1);
  const auto flat = [&](const at::Tensor& x) { return x.reshape({b, s, -1}); };
  at::Tensor inputs, gate, beta, decay_input;  // q | k | v, z, b, a
  if (sizes.apart) {
    inputs = parts.linear(y, name + "in_proj_qkv");
    gate = parts.linear(y, name + "in_proj_z");
    beta = parts.linear(y, name + "in_proj_b");
    decay_input = parts.linear(y, name + "in_proj_a");
  } else {
    const at::Tensor qkvz = parts.linear(y, name + "in_proj_qkvz").view({b, s, sizes.key_heads, -1});
    const auto each = qkvz.split_with_sizes({sizes.key_dim, sizes.key_dim, values, values}, -1);
    const auto ba = parts.linear(y, name + "in_proj_ba").view({b, s, sizes.key_heads, -1}).chunk(2, -1);
    inputs = at::cat({flat(each[0]), flat(each[1]), flat(each[2])}, -1);
    gate = each[3];
    beta = flat(ba[0]);
    decay_input = flat(ba[1]);
  }
  const at::Tensor mixed = convolve(inputs, parts.weight(name + "conv1d.weight"));
  const int64_t keys = sizes.key_heads * sizes.key_dim;
  const auto qkv = mixed.split_with_sizes({keys, keys, sizes.value_heads * sizes.value_dim}, -1);
  const auto key_heads = [&](const at::Tensor& x) {
    return normalized(x.view({b, s, sizes.key_heads, sizes.key_dim})).repeat_interleave(repeat, 2);
  };
  const at::Tensor decay =
      -parts.weight(name + "A_log").exp() * at::softplus(decay_input + parts.weight(name + "dt_bias"));
  const at::Tensor out =
      delta_rule(key_heads(qkv[0]) / std::sqrt(static_cast<double>(sizes.key_dim)), key_heads(qkv[1]),
                 qkv[2].view({b, s, sizes.value_heads, sizes.value_dim}), decay, beta.sigmoid());
  gate = gate.reshape({b, s, sizes.value_heads, sizes.value_dim});
  const at::Tensor normed = parts.rms_norm(out, parts.weight(name + "norm.weight"), parts.config().norm_epsilon);
  return parts.linear(flat(normed * gate * gate.sigmoid()), name + "out_proj");
}

}  // namespace

at::Tensor reference_attention(const ReferenceParts& parts, const at::Tensor& y, int64_t layer,
                               const ReferencePlaces& places) {
  const ReferenceConfig& config = parts.config();
  const std::string name = layer_name(layer, "self_attn");
  at::Tensor q = split_heads(parts.linear(y, name + "q_proj"), config.num_heads);
  at::Tensor k = split_heads(parts.linear(y, name + "k_proj"), config.num_kv_heads);
  const at::Tensor v = split_heads(parts.linear(y, name + "v_proj"), config.num_kv_heads);
  at::Tensor gate;  // [b, s, n d]
  if (config.gated_attention) {
    const auto halves = q.chunk(2, -1);
    gate = halves[1].transpose(1, 2).reshape({y.size(0), y.size(1), -1});
    q = halves[0];
  }
  if (config.qk_norm) {
    q = parts.norm(q, name + "q_norm");
    k = parts.norm(k, name + "k_norm");
  }
  const int64_t window = config.windows.empty() ? 0 : config.windows.at(static_cast<size_t>(layer));
  const at::Tensor out = parts.attend(rotate_heads(q, config, places.angles), rotate_heads(k, config, places.angles), v,
                                      1 / std::sqrt(static_cast<double>(config.head_dim)), window, places.sequence);
  return parts.linear(config.gated_attention ? out * gate.sigmoid() : out, name + "o_proj");
}

at::Tensor reference_latent_attention(const ReferenceParts& parts, const at::Tensor& y, int64_t layer,
                                      const ReferencePlaces& places) {
  const ReferenceConfig& config = parts.config();
  const ReferenceLatent& sizes = *config.latent;
  const std::string name = layer_name(layer, "self_attn");
  const auto norm = [&](const at::Tensor& x, const char* what) {
    return parts.rms_norm(x, parts.weight(name + what + ".weight"), 1e-6);  // whatever the model's epsilon is
  };
  const at::Tensor queries =
      sizes.q_rank > 0 ? parts.linear(norm(parts.linear(y, name + "q_a_proj"), "q_a_layernorm"), name + "q_b_proj")
                       : parts.linear(y, name + "q_proj");
  const auto q = split_heads(queries, config.num_heads).split_with_sizes({sizes.nope, sizes.rope}, -1);
  const auto narrow = parts.linear(y, name + "kv_a_proj_with_mqa").split_with_sizes({sizes.kv_rank, sizes.rope}, -1);
  const at::Tensor wide = parts.linear(norm(narrow[0], "kv_a_layernorm"), name + "kv_b_proj");
  const auto kv = split_heads(wide, config.num_heads).split_with_sizes({sizes.nope, sizes.value}, -1);
  const at::Tensor turned = rotate_neighbours(narrow[1].unsqueeze(1), places.angles)  // one for all heads
                                .expand({y.size(0), config.num_heads, y.size(1), sizes.rope});
  const at::Tensor out = parts.attend(at::cat({q[0], rotate_neighbours(q[1], places.angles)}, -1),
                                      at::cat({kv[0], turned}, -1), kv[1], latent_scale(config), 0, places.sequence);
  return parts.linear(out, name + "o_proj");
}

at::Tensor reference_delta_net(const ReferenceParts& parts, const at::Tensor& y, int64_t layer,
                               const ReferencePlaces& places) {
  const std::string name = layer_name(layer, "linear_attn");
  std::vector<at::Tensor> out;
  for (int64_t begin = 0; begin < y.size(1);) {
    const int64_t length = places.sequence.eq(places.sequence[begin]).sum().item<int64_t>();
    out.push_back(delta_net_of_sequence(parts, y.narrow(1, begin, length), name));
    begin += length;
  }
  return at::cat(out, 1);
}

}  // namespace megalith::testing
