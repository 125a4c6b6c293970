// Small sounds, and the results of other programs (tests/data/media/sounds/make_sounds.py).
#pragma once

#include <fmt/format.h>

#include "megalith/media/audio.h"
#include "tests/media/media_support.h"

namespace megalith::media {

inline const std::filesystem::path& sound_folder() {
  static const std::filesystem::path folder = "tests/data/media/sounds";
  return folder;
}
inline std::string sound_bytes(const std::string& file) { return io::read_text_file(sound_folder() / file, 1 << 30); }

// The fp32 numbers of one tensor.
inline std::vector<float> expected_sound(const std::string& name) {
  static const TensorBytes all(sound_folder() / "expected.safetensors");
  const auto raw = all.bytes(name);
  std::vector<float> values(raw.size() / sizeof(float));
  std::memcpy(values.data(), raw.data(), raw.size());
  return values;
}

// The WAV files, and those that need libsndfile.
inline const std::vector<std::string>& wav_files() {
  static const std::vector<std::string> all{"byte.wav",  "double.wav", "float.wav",
                                            "pcm16.wav", "pcm32.wav",  "stereo24.wav"};
  return all;
}
inline const std::vector<std::string>& other_files() {
  static const std::vector<std::string> all{"stereo.flac", "mono.ogg", "mono.mp3"};
  return all;
}

// Compares as many numbers as `expected` has.
inline void expect_near(const std::vector<float>& actual, const std::vector<float>& expected, double tolerance) {
  ASSERT_GE(actual.size(), expected.size());
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(actual[i]) - static_cast<double>(expected[i])));
  EXPECT_LE(largest, tolerance);
}

}  // namespace megalith::media
