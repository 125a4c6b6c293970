// Frequencies and angles of rotary embedding. The formulas are those of HF's modeling_rope_utils.py, with its
// operations in its order and its types, so that the frequencies agree bit for bit. The r/2 frequencies are computed on
// the host in fp32, the t · r/2 angles θ_i · position on the device, once per micro-batch: all layers share them.
#include "megalith/ops/norm_rope/rope.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/host_values.h"

namespace megalith::ops {

namespace {

using at::Tensor;

// Settings come from a model's config.json; messages name its fields.
void check_settings(const RopeSettings& s) {
  check<ConfigError>(s.rotary_dim > 0 && s.rotary_dim % 2 == 0,
                     "rotary embedding of {} channels: head_dim * partial_rotary_factor must be even and positive",
                     s.rotary_dim);
  check<ConfigError>(s.theta > 0, "rope_theta is {}; it must be positive", s.theta);
  check<ConfigError>(s.scaling == RopeScaling::kNone || s.factor > 0,
                     "factor in rope_parameters is {}; it must be positive", s.factor);
  const bool needs_original =
      s.scaling == RopeScaling::kDynamic || s.scaling == RopeScaling::kYarn || s.scaling == RopeScaling::kLlama3;
  check<ConfigError>(!needs_original || s.original_positions > 0,
                     "original_max_position_embeddings in rope_parameters is {}; this kind of scaling needs the "
                     "length that the model was first trained with",
                     s.original_positions);
  check<ConfigError>(s.scaling != RopeScaling::kDynamic || s.rotary_dim > 2,
                     "dynamic scaling needs more than 2 rotated channels per head; there are {}", s.rotary_dim);
  check<ConfigError>(s.scaling != RopeScaling::kLlama3 || s.high_freq_factor != s.low_freq_factor,
                     "low_freq_factor and high_freq_factor in rope_parameters are both {}; they must differ",
                     s.low_freq_factor);
}

// Returns base^(2i/r), the inverse of the frequency of channel pair i.
Tensor wave_numbers(double base, int64_t rotary_dim) {
  const Tensor even = at::arange(0, rotary_dim, 2, at::TensorOptions(at::kLong)).to(at::kFloat);
  return at::pow(at::Scalar(base), even / rotary_dim);
}

Tensor plain_frequencies(double base, int64_t rotary_dim) { return wave_numbers(base, rotary_dim).reciprocal(); }

// NTK-aware scaling: for sequences beyond the original length the base grows, which slows low frequencies most.
Tensor dynamic_frequencies(const RopeSettings& s, int64_t longest) {
  const auto original = static_cast<double>(s.original_positions);
  const double length = std::max(static_cast<double>(longest), original);
  const auto r = static_cast<double>(s.rotary_dim);
  const double growth = std::pow((s.factor * length / original) - (s.factor - 1), r / (r - 2));
  return plain_frequencies(s.theta * growth, s.rotary_dim);
}

// YaRN (arXiv:2309.00071): slow channels are interpolated by `factor`, fast ones are kept, with a linear ramp between
// the channels that turn beta_fast and beta_slow times within the original length.
Tensor yarn_frequencies(const RopeSettings& s) {
  const auto r = static_cast<double>(s.rotary_dim);
  const auto channel_of = [&](double rotations) {
    const double wave = static_cast<double>(s.original_positions) / (rotations * 2 * std::numbers::pi);
    return (r * std::log(wave)) / (2 * std::log(s.theta));
  };
  double low = channel_of(s.beta_fast);
  double high = channel_of(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, r - 1);
  if (low == high) high += 0.001;  // as HF: no division by zero below
  const Tensor waves = wave_numbers(s.theta, s.rotary_dim);
  const Tensor channel = at::arange(s.rotary_dim / 2, at::TensorOptions(at::kFloat));
  const Tensor extrapolated = 1 - ((channel - low) / (high - low)).clamp(0, 1);
  return (waves * s.factor).reciprocal() * (1 - extrapolated) + waves.reciprocal() * extrapolated;
}

// Llama 3.1: wavelengths above original / low_freq_factor are stretched by `factor`, those below original /
// high_freq_factor are kept, and those between are blended.
Tensor llama3_frequencies(const RopeSettings& s) {
  const auto original = static_cast<double>(s.original_positions);
  const Tensor plain = plain_frequencies(s.theta, s.rotary_dim);
  const Tensor wave = plain.reciprocal() * (2 * std::numbers::pi);
  const Tensor is_long = wave > original / s.low_freq_factor;
  const Tensor is_short = wave < original / s.high_freq_factor;
  const Tensor scaled = at::where(is_long, plain / s.factor, plain);
  const Tensor smooth = (wave.reciprocal() * original - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  const Tensor blended = (1 - smooth) * scaled / s.factor + smooth * scaled;
  return at::where(is_long.logical_or(is_short), scaled, blended);
}

// fp32 [r/2]
Tensor frequencies(const RopeSettings& s, int64_t longest) {
  check_settings(s);
  switch (s.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
      return plain_frequencies(s.theta, s.rotary_dim) / s.factor;
    case RopeScaling::kDynamic:
      return dynamic_frequencies(s, longest);
    case RopeScaling::kYarn:
      return yarn_frequencies(s);
    case RopeScaling::kLlama3:
      return llama3_frequencies(s);
  }
  return plain_frequencies(s.theta, s.rotary_dim);
}

}  // namespace

std::vector<float> rope_frequencies(const RopeSettings& settings, int64_t longest) {
  const Tensor result = frequencies(settings, longest).contiguous();
  const auto* first = result.const_data_ptr<float>();
  return {first, first + result.numel()};
}

double rope_attention_factor(const RopeSettings& settings) {
  if (settings.scaling != RopeScaling::kYarn) return 1;
  if (settings.attention_factor) return *settings.attention_factor;
  const auto magnitude = [&](double mscale) {
    return settings.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(settings.factor) + 1.0;
  };
  // DeepSeek's mscales count only when both are there and not zero, as in HF.
  const double mscale = settings.mscale.value_or(0);
  const double mscale_all_dim = settings.mscale_all_dim.value_or(0);
  if (mscale != 0 && mscale_all_dim != 0) return magnitude(mscale) / magnitude(mscale_all_dim);
  return magnitude(1);
}

std::vector<int64_t> rope_axes(const RopeSettings& settings) {
  const std::vector<int64_t>& sections = settings.sections;
  const int64_t pairs = settings.rotary_dim / 2;
  check<ConfigError>(sections.size() == 3 && sections[0] + sections[1] + sections[2] == pairs,
                     "mrope_section is [{}]; it must be three numbers that add up to {}, half of the rotating channels",
                     fmt::join(sections, ", "), pairs);
  std::vector<int64_t> axes(static_cast<size_t>(pairs), 0);
  for (int64_t i = 0; i < pairs; ++i) {
    int64_t& axis = axes[static_cast<size_t>(i)];
    if (!settings.interleaved_sections)
      axis = i < sections[0] ? 0 : i < sections[0] + sections[1] ? 1 : 2;
    else if (i % 3 != 0 && i < 3 * sections[static_cast<size_t>(i % 3)])
      axis = i % 3;
  }
  return axes;
}

// Positions are multiplied in fp32, as HF does: beyond 2^24 tokens they would no longer be exact.
RopeAngles rope_angles(const RopeSettings& settings, const SequenceLayout& layout, at::Device device) {
  const at::NoGradGuard no_grad;
  const Tensor theta = to_device(frequencies(settings, layout.max_position()), device);  // [r/2]
  Tensor angle;                                                                          // [t, r/2]
  if (layout.has_coordinates()) {
    const Tensor axes = to_device(at::tensor(rope_axes(settings), at::kLong), device);
    angle = layout.coordinates(device).to(at::kFloat).t().index_select(1, axes) * theta;
  } else {
    const Tensor positions = layout.tokens() == 0 ? at::empty({0}, theta.options()) : layout.positions(device);
    angle = at::outer(positions.to(at::kFloat), theta);
  }
  const double factor = rope_attention_factor(settings);
  RopeAngles angles{.cos = angle.cos(), .sin = angle.sin(), .interleaved = settings.interleaved};
  if (factor != 1) {
    angles.cos.mul_(factor);
    angles.sin.mul_(factor);
  }
  return angles;
}

}  // namespace megalith::ops
