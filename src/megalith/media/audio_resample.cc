// With from : to reduced by their greatest common divisor, output sample q · to + p lies at q · from + p · from / to
// of the input. Its weights depend on the phase p alone: a sinc of the lower of both Nyquist frequencies (times 0.99),
// under a window that ends after 6 of its zero crossings. The formula is torchaudio's (functional/functional.py,
// _get_sinc_resample_kernel). Weights are computed in fp64 here and in fp32 there, which makes a difference of 1e-5;
// those outside the window are left out.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/media/audio.h"

namespace megalith::media {

namespace {

constexpr double kCrossings = 6, kRolloff = 0.99;

// The weights of one phase: of input samples q · from + first, and those after it.
struct Phase {
  int64_t first = 0;
  std::vector<float> weights;
};

std::vector<Phase> make_phases(int64_t from, int64_t to) {
  const double cutoff = static_cast<double>(std::min(from, to)) * kRolloff;
  const auto reach = static_cast<int64_t>(std::ceil(kCrossings * static_cast<double>(from) / cutoff));
  std::vector<Phase> phases(static_cast<size_t>(to));
  for (int64_t p = 0; p < to; ++p) {
    Phase& phase = phases[static_cast<size_t>(p)];
    for (int64_t i = -reach; i < reach + from; ++i) {
      const double t =
          (static_cast<double>(i) / static_cast<double>(from) - static_cast<double>(p) / static_cast<double>(to)) *
          cutoff;
      if (std::abs(t) >= kCrossings) continue;
      if (phase.weights.empty()) phase.first = i;
      const double window = std::cos(t * std::numbers::pi / kCrossings / 2);
      const double sinc = t == 0 ? 1 : std::sin(t * std::numbers::pi) / (t * std::numbers::pi);
      phase.weights.push_back(static_cast<float>(sinc * window * window * cutoff / static_cast<double>(from)));
    }
  }
  return phases;
}

}  // namespace

int64_t resampled_length(int64_t samples, int64_t from, int64_t to) {
  const int64_t common = std::gcd(from, to);
  return (samples * (to / common) + from / common - 1) / (from / common);
}

Sound resample(Sound sound, int64_t rate) {
  check(sound.rate >= kMinRate && sound.rate <= kMaxRate && rate >= kMinRate && rate <= kMaxRate,
        "resampling from {} to {} samples per second", sound.rate, rate);
  if (sound.rate == rate) return sound;
  const int64_t common = std::gcd(sound.rate, rate), from = sound.rate / common, to = rate / common;
  const std::vector<Phase> phases = make_phases(from, to);
  const auto length = std::ssize(sound.samples);
  Sound out{.rate = rate,
            .samples = std::vector<float>(static_cast<size_t>(resampled_length(length, sound.rate, rate)))};
  for (int64_t j = 0; j < std::ssize(out.samples); ++j) {
    const Phase& phase = phases[static_cast<size_t>(j % to)];
    // Silence before the beginning and after the end.
    const int64_t begin = j / to * from + phase.first;
    const int64_t first = std::max<int64_t>(0, -begin);
    const int64_t last = std::min<int64_t>(std::ssize(phase.weights), length - begin);
    double sum = 0;
    for (int64_t i = first; i < last; ++i)
      sum += static_cast<double>(phase.weights[static_cast<size_t>(i)]) *
             static_cast<double>(sound.samples[static_cast<size_t>(begin + i)]);
    out.samples[static_cast<size_t>(j)] = static_cast<float>(sum);
  }
  return out;
}

}  // namespace megalith::media
