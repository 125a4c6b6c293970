// Sound: decoded samples in memory, and the ways to get there: decoding and resampling.
//
// WAV files are read by this module; FLAC, MP3, Ogg (Vorbis, Opus), AIFF and other formats by libsndfile. Channels are
// averaged. Results are those of torchaudio up to rounding.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::media {

// One channel.
struct Sound {
  int64_t rate = 0;            // samples per second
  std::vector<float> samples;  // in [-1, 1]; files with floating-point samples may go beyond
};

// The size of a sound, from the header of its file.
struct SoundHeader {
  int64_t rate = 0;      // samples per second, within the limits below
  int64_t channels = 0;  // at least 1
  int64_t samples = 0;   // samples per channel
};

// Files with more samples per channel are refused (93 minutes at 48 kHz), and so are other rates and more channels.
inline constexpr int64_t kMaxSamples = int64_t{1} << 28;
inline constexpr int64_t kMinRate = 1000, kMaxRate = 768'000;
inline constexpr int64_t kMaxChannels = 64;

// Returns whether this build reads files other than WAV: libsndfile may have been missing.
bool can_decode_all_sounds();

// Both throw DataError, naming the sound, for content that is damaged, of an unknown format or beyond the limits, and
// ConfigError when the build lacks the library for it. read_sound_header decodes nothing.
SoundHeader read_sound_header(std::string_view bytes, const std::string& name);
Sound decode_sound(std::string_view bytes, const std::string& name);

// Returns the number of samples that `samples` become at another rate: ⌈samples · to / from⌉.
int64_t resampled_length(int64_t samples, int64_t from, int64_t to);

// Returns the sound at another rate, by windowed sinc interpolation as torchaudio's `resample` does it by default: Hann
// window, 6 zero crossings on each side, cutoff at 0.99 of the lower Nyquist frequency. The same sound if the rate is
// that already.
Sound resample(Sound sound, int64_t rate);

}  // namespace megalith::media
