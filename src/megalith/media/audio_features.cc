// The Fourier transform of 400 real samples in two steps, 400 = 16 · 25. With n = 25 a + b and k = c + 16 d,
//
//   X[c + 16 d] = Σ_b w25^(b d) · w400^(b c) · Σ_a w16^(a c) x[25 a + b],    w = exp(-2πi / …)
//
// Real input makes X[400 - k] the conjugate of X[k], so c = 0 … 8 give all powers: k = c + 16 d, or 400 - k. That is
// 30,000 multiplications instead of 160,000, in loops over 25 neighbours.
#include "megalith/media/audio_features.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "megalith/base/error.h"

namespace megalith::media {

namespace {

constexpr size_t kWindow = kFrameWindow, kOuter = 16, kInner = 25, kFrequencies = kWindow / 2 + 1;
static_assert(kOuter * kInner == kWindow);
constexpr double kHighest = 8000;      // Hz
constexpr double kLeastPower = 1e-10;  // before the logarithm
constexpr double kRange = 8;           // decades below the loudest that are kept

// Slaney's mel scale: linear up to 1000 Hz, logarithmic above.
constexpr double kLinearHz = 200.0 / 3, kBreakHz = 1000, kBreakMel = kBreakHz / kLinearHz;
const double kLogStep = std::log(6.4) / 27;
double hz_to_mel(double hz) { return hz < kBreakHz ? hz / kLinearHz : kBreakMel + std::log(hz / kBreakHz) / kLogStep; }
double mel_to_hz(double mel) {
  return mel < kBreakMel ? mel * kLinearHz : kBreakHz * std::exp((mel - kBreakMel) * kLogStep);
}

// The sample at place i of a sound that is mirrored at both ends, without repeating the samples there.
float mirrored(std::span<const float> samples, int64_t i) {
  const auto last = std::ssize(samples) - 1;
  if (last == 0) return samples[0];
  const int64_t period = 2 * last, at = ((i % period) + period) % period;
  return samples[static_cast<size_t>(at <= last ? at : period - at)];
}

}  // namespace

int64_t audio_tokens(int64_t frames, int64_t chunk) {
  const auto eighth = [](int64_t n) { return (n + 7) / 8; };
  return frames / chunk * eighth(chunk) + eighth(frames % chunk);
}

LogMel::LogMel(int64_t bins) : bins_(bins) {
  check(bins > 0, "a spectrogram of {} bands", bins);
  for (size_t i = 0; i < kWindow; ++i) {
    const double angle = 2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(kWindow);
    hann_.push_back(0.5 - 0.5 * std::cos(angle));
    roots_.push_back(std::cos(angle));
    roots_.push_back(-std::sin(angle));
  }
  for (size_t b = 0; b < kInner; ++b)
    for (size_t part = 0; part < 2; ++part)
      for (size_t d = 0; d < kInner; ++d)
        inner_.push_back(roots_[2 * (b * d % kInner * kOuter) + part]);  // w25 = w400^16
  // Band i rises from edge i to edge i + 1 and falls to edge i + 2.
  std::vector<double> edges;
  const double highest = hz_to_mel(kHighest);
  for (int64_t i = 0; i < bins + 2; ++i)
    edges.push_back(mel_to_hz(highest * static_cast<double>(i) / static_cast<double>(bins + 1)));
  for (size_t i = 0; i < static_cast<size_t>(bins); ++i) {
    Band band;
    for (size_t k = 0; k < kFrequencies; ++k) {
      const double hz = kHighest * static_cast<double>(k) / static_cast<double>(kFrequencies - 1);
      const double rise = (hz - edges[i]) / (edges[i + 1] - edges[i]);
      const double fall = (edges[i + 2] - hz) / (edges[i + 2] - edges[i + 1]);
      const double weight = std::min(rise, fall) * 2 / (edges[i + 2] - edges[i]);
      if (weight <= 0) continue;
      if (band.weights.empty()) band.first = k;
      band.weights.push_back(weight);
    }
    bands_.push_back(std::move(band));
  }
}

void LogMel::power(const double* window, double* out) const {
  using Row = std::array<double, kInner>;
  for (size_t c = 0; c <= kOuter / 2; ++c) {
    Row re{}, im{};
    for (size_t a = 0; a < kOuter; ++a) {
      const size_t turn = a * c % kOuter * kInner;  // w16 = w400^25
      const double cos = roots_[2 * turn], sin = roots_[2 * turn + 1];
      for (size_t b = 0; b < kInner; ++b) {
        re[b] += cos * window[kInner * a + b];
        im[b] += sin * window[kInner * a + b];
      }
    }
    Row sum_re{}, sum_im{};
    for (size_t b = 0; b < kInner; ++b) {
      const double cos = roots_[2 * (b * c)], sin = roots_[2 * (b * c) + 1];
      const double x = re[b] * cos - im[b] * sin, y = re[b] * sin + im[b] * cos;
      const double* inner_cos = inner_.data() + 2 * kInner * b;
      const double* inner_sin = inner_cos + kInner;
      for (size_t d = 0; d < kInner; ++d) {
        sum_re[d] += x * inner_cos[d] - y * inner_sin[d];
        sum_im[d] += x * inner_sin[d] + y * inner_cos[d];
      }
    }
    for (size_t d = 0; d < kInner; ++d) {
      const size_t k = c + kOuter * d;
      out[k < kFrequencies ? k : kWindow - k] = sum_re[d] * sum_re[d] + sum_im[d] * sum_im[d];
    }
  }
}

std::vector<float> LogMel::frames(std::span<const float> samples) const {
  const int64_t count = feature_frames(std::ssize(samples));
  std::vector<float> out(static_cast<size_t>(count * bins_));
  std::array<double, kWindow> window{};
  std::array<double, kFrequencies> powers{};
  float loudest = -INFINITY;
  for (int64_t frame = 0; frame < count; ++frame) {
    const int64_t begin = frame * kFrameHop - kFrameWindow / 2;
    const bool inside = begin >= 0 && begin + kFrameWindow <= std::ssize(samples);
    for (int64_t i = 0; i < kFrameWindow; ++i) {
      const float value = inside ? samples[static_cast<size_t>(begin + i)] : mirrored(samples, begin + i);
      window[static_cast<size_t>(i)] = static_cast<double>(value) * hann_[static_cast<size_t>(i)];
    }
    power(window.data(), powers.data());
    float* row = out.data() + frame * bins_;
    for (const Band& band : bands_) {
      double sum = 0;
      for (size_t i = 0; i < band.weights.size(); ++i) sum += band.weights[i] * powers[band.first + i];
      *row = static_cast<float>(std::log10(std::max(sum, kLeastPower)));
      loudest = std::max(loudest, *row++);
    }
  }
  for (float& value : out) value = (std::max(value, loudest - static_cast<float>(kRange)) + 4) / 4;
  return out;
}

}  // namespace megalith::media
