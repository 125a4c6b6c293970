// Sounds for tests, as WAV files of 16 bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <string>

namespace megalith::testing {

// A tone, with another at a third of its strength so that spectra have more than one peak.
struct Tone {
  int64_t rate = 16000;
  int64_t samples = 0;
  double hertz = 440;
};

inline void write_wav(const std::filesystem::path& path, const Tone& tone) {
  std::string bytes;
  const auto add = [&bytes](uint64_t value, int size) {
    for (int i = 0; i < size; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFF);
  };
  const auto size = static_cast<uint64_t>(2 * tone.samples);
  bytes += "RIFF";
  add(36 + size, 4);
  bytes += "WAVEfmt ";
  add(16, 4);
  add(1, 2);  // PCM
  add(1, 2);  // one channel
  add(static_cast<uint64_t>(tone.rate), 4);
  add(static_cast<uint64_t>(2 * tone.rate), 4);
  add(2, 2);
  add(16, 2);
  bytes += "data";
  add(size, 4);
  for (int64_t i = 0; i < tone.samples; ++i) {
    const double angle = 2 * std::numbers::pi * tone.hertz * static_cast<double>(i) / static_cast<double>(tone.rate);
    const double value = 0.6 * std::sin(angle) + 0.2 * std::sin(2.7 * angle);
    add(static_cast<uint16_t>(static_cast<int16_t>(std::lround(20000 * value))), 2);
  }
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace megalith::testing
