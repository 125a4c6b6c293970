#include "megalith/media/sound_processor.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <vector>

#include "megalith/base/error.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::media {
namespace {

using testing::expect_error;

TEST(SoundProcessor, LengthFollowsFromTheHeader) {
  const SoundProcessor processor({.bins = 16, .chunk = 100});
  EXPECT_EQ(processor.row_width(), 16);
  EXPECT_EQ(processor.frames({.rate = 16000, .channels = 1, .samples = 16'000}, "a"), 100);
  EXPECT_EQ(processor.frames({.rate = 48000, .channels = 2, .samples = 48'000}, "a"), 100);
  EXPECT_EQ(processor.frames({.rate = 8000, .channels = 1, .samples = 20'000}, "a"), 250);
  EXPECT_EQ(processor.tokens(100), 13);
  EXPECT_EQ(processor.tokens(250), 33);
  expect_error<DataError>([&] { processor.frames({.rate = 16000, .channels = 1, .samples = 159}, "click.wav"); },
                          {"click.wav: the sound has 159 samples at 16000 per second"});
}

// The frames of a sound at another rate are those of the resampled one.
TEST(SoundProcessor, FramesAreThoseOfTheResampledSound) {
  Sound sound{.rate = 8000};
  for (int i = 0; i < 4000; ++i) sound.samples.push_back(static_cast<float>((i * 7919 % 2001) - 1000) / 1500);
  const SoundProcessor processor({.bins = 24});
  const int64_t frames = processor.frames({8000, 1, 4000}, "a");
  std::vector<float> rows(static_cast<size_t>(frames * 24), -100);
  processor.write_frames(sound, rows.data());
  EXPECT_EQ(rows, LogMel(24).frames(resample(sound, kFeatureRate).samples));
}

TEST(SoundProcessor, FilesOfAnotherModelAreRefused) {
  const testing::TempFolder folder;
  check_feature_extractor(folder.path(), {});  // nothing is asked for
  const auto write = [&](const char* name, const char* text) { std::ofstream(folder / name) << text; };
  write("processor_config.json", R"({"feature_extractor": {"feature_size": 80}})");
  expect_error<DataError>([&] { check_feature_extractor(folder.path(), {}); }, {"feature_size", "be 128"});
  check_feature_extractor(folder.path(), {.bins = 80});
  write("preprocessor_config.json",
        R"({"feature_size": 128, "sampling_rate": 16000, "hop_length": 160, "n_fft": 400})");
  check_feature_extractor(folder.path(), {});
  write("preprocessor_config.json", R"({"feature_size": 128, "sampling_rate": 24000})");
  expect_error<DataError>([&] { check_feature_extractor(folder.path(), {}); }, {"sampling_rate", "be 16000"});
}

}  // namespace
}  // namespace megalith::media
