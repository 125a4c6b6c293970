#include "tests/support/reference_parts.h"

#include <ATen/ATen.h>

#include <limits>

#include "megalith/base/error.h"

namespace megalith::testing {

at::Tensor ReferenceParts::linear(const at::Tensor& x, const std::string& name) const {
  const at::Tensor& w = weight(name + ".weight");
  const at::Tensor y = at::matmul(x, config_.is_gpt2() ? w : w.t());
  return has(name + ".bias") ? y + weight(name + ".bias") : y;
}

at::Tensor ReferenceParts::rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) const {
  const at::Tensor wide = x.to(acc(x));
  const at::Tensor size = (wide.pow(2).mean(-1, /*keepdim=*/true) + epsilon).rsqrt();
  return weight * (wide * size).to(x.scalar_type());
}

at::Tensor ReferenceParts::rms_norm(const at::Tensor& x, const std::string& name) const {
  const at::Tensor& w = weight(name + ".weight");
  return rms_norm(x, config_.centered_norms ? 1 + w : w, config_.norm_epsilon);
}

at::Tensor ReferenceParts::layer_norm(const at::Tensor& x, const std::string& name) const {
  return at::layer_norm(x, {x.size(-1)}, weight(name + ".weight"), weight(name + ".bias"), config_.norm_epsilon);
}

at::Tensor ReferenceParts::norm(const at::Tensor& x, const std::string& name) const {
  return config_.layer_norm ? layer_norm(x, name) : rms_norm(x, name);
}

at::Tensor ReferenceParts::activate(const at::Tensor& x) const {
  const std::string& kind = config_.activation;
  if (kind == "silu") return x * x.sigmoid();
  if (kind == "gelu") return at::gelu(x);
  if (kind == "gelu_new" || kind == "gelu_pytorch_tanh") return at::gelu(x, "tanh");
  if (kind == "quick_gelu") return x * (1.702 * x).sigmoid();
  if (kind == "relu2") return at::relu(x).pow(2);
  check<ConfigError>(kind == "relu", "the reference model has no activation {}", kind);
  return at::relu(x);
}

at::Tensor ReferenceParts::mlp(const at::Tensor& x, const std::string& name) const {
  if (!config_.gated_mlp) return linear(activate(linear(x, name + "up_proj")), name + "down_proj");
  return linear(activate(linear(x, name + "gate_proj")) * linear(x, name + "up_proj"), name + "down_proj");
}

at::Tensor ReferenceParts::attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                                  int64_t window, const at::Tensor& sequence) const {
  const int64_t group = q.size(1) / k.size(1);
  at::Tensor scores = at::matmul(q, k.repeat_interleave(group, 1).transpose(2, 3)) * scale;  // [b, n, s, s]
  const at::Tensor place = at::arange(q.size(2), at::kLong);
  const at::Tensor distance = place.unsqueeze(1) - place.unsqueeze(0);  // query - key
  at::Tensor hidden = distance.lt(0).logical_or(sequence.unsqueeze(1).ne(sequence.unsqueeze(0)));
  if (window > 0) hidden = hidden.logical_or(distance.ge(window));
  scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  const at::Tensor weights = at::softmax(scores, -1, acc(scores)).to(q.scalar_type());
  return at::matmul(weights, v.repeat_interleave(group, 1)).transpose(1, 2).reshape({q.size(0), q.size(2), -1});
}

}  // namespace megalith::testing
