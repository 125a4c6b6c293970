// Log-mel frames against transformers' WhisperFeatureExtractor. It computes in fp32 there and in fp64 here: a frequency
// of which little is left beside loud ones differs by 2e-3 of a unit at most (a unit is four decades).
#include "megalith/media/audio_features.h"

#include <gtest/gtest.h>

#include "tests/media/sound_support.h"

namespace megalith::media {
namespace {

TEST(LogMel, EqualsWhispersFeatures) {
  const LogMel mel;
  std::vector<std::string> files = wav_files();
  if (can_decode_all_sounds()) files.insert(files.end(), other_files().begin(), other_files().end());
  for (const std::string& file : files) {
    SCOPED_TRACE(file);
    const Sound sound = resample(decode_sound(sound_bytes(file), file), kFeatureRate);
    const std::vector<float> frames = mel.frames(sound.samples), expected = expected_sound("features." + file);
    EXPECT_EQ(std::ssize(frames), feature_frames(std::ssize(sound.samples)) * 128);
    ASSERT_EQ(frames.size(), expected.size());
    expect_near(frames, expected, 2e-3);
    double sum = 0;
    for (size_t i = 0; i < frames.size(); ++i) sum += std::abs(frames[i] - expected[i]);
    EXPECT_LE(sum / static_cast<double>(frames.size()), 1e-5);
  }
}

// A tone of 1 kHz: the loudest band is the one around it, and the floor is 8 decades below: 2 units.
TEST(LogMel, LoudestBandAndFloor) {
  const LogMel mel(40);
  std::vector<float> samples(16'000);
  for (size_t i = 0; i < samples.size(); ++i) samples[i] = std::sin(2 * M_PI * 1000 * static_cast<double>(i) / 16'000);
  const std::vector<float> frames = mel.frames(samples);
  ASSERT_EQ(frames.size(), 100U * 40);
  const auto frame = frames.begin() + 50 * 40;
  // The scale has 15 units up to 1 kHz of 45.2, so the middle of band 12 or 13 (of 41 steps) is there.
  EXPECT_NEAR(std::max_element(frame, frame + 40) - frame, 12.6, 1);
  EXPECT_FLOAT_EQ(*std::ranges::min_element(frames), *std::ranges::max_element(frames) - 2);
}

TEST(LogMel, ShortAndSilentSounds) {
  const LogMel mel;
  EXPECT_TRUE(mel.frames(std::vector<float>(159, 0.5F)).empty());
  // Shorter than half a window: mirrored again and again.
  EXPECT_EQ(mel.frames(std::vector<float>(161, 0.5F)).size(), 128U);
  for (const float value : mel.frames(std::vector<float>(1000, 0.0F))) EXPECT_FLOAT_EQ(value, (-10 + 4) / 4.0F);
}

TEST(AudioTokens, AnEighthOfEachChunk) {
  EXPECT_EQ(audio_tokens(0), 0);
  EXPECT_EQ(audio_tokens(1), 1);
  EXPECT_EQ(audio_tokens(100), 13);
  EXPECT_EQ(audio_tokens(101), 14);
  EXPECT_EQ(audio_tokens(250), 33);
  EXPECT_EQ(audio_tokens(3000), 390);
}

}  // namespace
}  // namespace megalith::media
