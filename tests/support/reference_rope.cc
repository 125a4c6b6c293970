#include "tests/support/reference_rope.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

#include "megalith/base/error.h"

namespace megalith::testing {

namespace {

// base^(2i/r), i < r/2
at::Tensor powers(double base, int64_t r) { return at::pow(base, at::arange(0, r, 2, at::kFloat) / r); }

at::Tensor llama3(const ReferenceRope& rope, const at::Tensor& plain) {
  const auto original = static_cast<double>(rope.original_positions);
  const at::Tensor wavelength = 2 * std::numbers::pi / plain;
  const at::Tensor smooth =
      (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor between = (1 - smooth) * plain / rope.factor + smooth * plain;
  const at::Tensor scaled = at::where(wavelength > original / rope.low_freq_factor, plain / rope.factor, plain);
  const at::Tensor is_between =
      (wavelength >= original / rope.high_freq_factor).logical_and(wavelength <= original / rope.low_freq_factor);
  return at::where(is_between, between, scaled);
}

at::Tensor yarn(const ReferenceRope& rope, int64_t r) {
  const auto channel = [&](double rotations) {
    return static_cast<double>(r) *
           std::log(static_cast<double>(rope.original_positions) / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = channel(rope.beta_fast), high = channel(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(r - 1));
  if (low == high) high += 0.001;
  const at::Tensor ramp = ((at::arange(r / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
  const at::Tensor plain = powers(rope.theta, r);
  return 1 / (rope.factor * plain) * ramp + 1 / plain * (1 - ramp);
}

at::Tensor frequencies(const ReferenceConfig& config, int64_t r, int64_t length) {
  const ReferenceRope& rope = config.rope;
  if (rope.type == "default") return 1 / powers(rope.theta, r);
  if (rope.type == "linear") return 1 / powers(rope.theta, r) / rope.factor;
  if (rope.type == "llama3") return llama3(rope, 1 / powers(rope.theta, r));
  if (rope.type == "yarn") return yarn(rope, r);
  check<ConfigError>(rope.type == "dynamic", "the reference model has no rope type {}", rope.type);
  const auto limit = static_cast<double>(config.max_positions);
  const double stretch = rope.factor * std::max(static_cast<double>(length), limit) / limit - (rope.factor - 1);
  const double exponent = static_cast<double>(r) / static_cast<double>(r - 2);
  return 1 / powers(rope.theta * std::pow(stretch, exponent), r);
}

double attention_factor(const ReferenceRope& rope) {
  if (rope.type != "yarn") return 1;
  if (rope.attention_factor) return *rope.attention_factor;
  const auto scale = [&](double m) { return rope.factor <= 1 ? 1.0 : 0.1 * m * std::log(rope.factor) + 1; };
  return rope.mscale && rope.mscale_all_dim ? scale(*rope.mscale) / scale(*rope.mscale_all_dim) : scale(1);
}

}  // namespace

std::pair<at::Tensor, at::Tensor> reference_angles(const ReferenceConfig& config, const at::Tensor& position_ids) {
  const auto r = static_cast<int64_t>(static_cast<double>(config.head_dim) * config.rope.partial_rotary_factor);
  const int64_t length = position_ids.max().item<int64_t>() + 1;
  const at::Tensor half = position_ids.unsqueeze(-1).to(at::kFloat) * frequencies(config, r, length);
  const at::Tensor angles = at::cat({half, half}, -1);
  const double factor = attention_factor(config.rope);
  return {angles.cos() * factor, angles.sin() * factor};
}

at::Tensor reference_rotate(const at::Tensor& x, const std::pair<at::Tensor, at::Tensor>& angles) {
  const at::Tensor cos = angles.first.unsqueeze(1).to(x.scalar_type());  // [b, 1, s, r]
  const at::Tensor sin = angles.second.unsqueeze(1).to(x.scalar_type());
  const int64_t r = cos.size(-1), d = x.size(-1);
  const at::Tensor turning = x.slice(-1, 0, r);
  const auto halves = turning.chunk(2, -1);
  const at::Tensor turned = turning * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
  return r == d ? turned : at::cat({turned, x.slice(-1, r, d)}, -1);
}

}  // namespace megalith::testing
