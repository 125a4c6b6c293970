// Decoding against libsndfile's own reader in Python, resampling against torchaudio. WAV files are exact; in compressed
// formats the last bits depend on the version of the library. The weights of resampling are computed in fp64 here and
// in fp32 there, which is off by up to 1.5e-5 of full scale.
#include "megalith/media/audio.h"

#include <gtest/gtest.h>

#include "fuzz/entries.h"
#include "megalith/base/error.h"
#include "tests/media/sound_support.h"
#include "tests/support/expect.h"
#include "tests/support/fuzz_corpus.h"

namespace megalith::media {
namespace {

void expect_decoded(const std::string& file, double tolerance) {
  SCOPED_TRACE(file);
  const std::string bytes = sound_bytes(file);
  const SoundHeader header = read_sound_header(bytes, file);
  const Sound sound = decode_sound(bytes, file);
  const std::vector<float> lengths = expected_sound("length." + file);
  EXPECT_EQ(header.samples, static_cast<int64_t>(lengths[0]));
  EXPECT_EQ(header.rate, sound.rate);
  ASSERT_EQ(std::ssize(sound.samples), header.samples);
  expect_near(sound.samples, expected_sound("mono." + file), tolerance);
  const Sound at_16k = resample(sound, 16'000);
  EXPECT_EQ(at_16k.rate, 16'000);
  EXPECT_EQ(std::ssize(at_16k.samples), static_cast<int64_t>(lengths[1]));
  EXPECT_EQ(resampled_length(header.samples, header.rate, 16'000), static_cast<int64_t>(lengths[1]));
  expect_near(at_16k.samples, expected_sound("resampled." + file), 2e-5 + 2 * tolerance);
}

TEST(DecodeSound, WavFiles) {
  for (const std::string& file : wav_files()) expect_decoded(file, 0);
}

TEST(DecodeSound, OtherFilesByLibsndfile) {
  for (const std::string& file : other_files()) {
    if (can_decode_all_sounds())
      expect_decoded(file, 1e-4);
    else
      testing::expect_error<ConfigError>([&] { decode_sound(sound_bytes(file), file); }, {file, "libsndfile1-dev"});
  }
}

// Replaces bytes of a WAV file: 20 is the tag, 22 the channels, 24 the rate, 34 the bits.
std::string changed(size_t at, const std::string& bytes) {
  return sound_bytes("pcm16.wav").replace(at, bytes.size(), bytes);
}
void expect_refused(const std::string& bytes, const std::vector<std::string>& parts) {
  testing::expect_error<DataError>([&] { decode_sound(bytes, "x.wav"); }, parts);
  testing::expect_error<DataError>([&] { read_sound_header(bytes, "x.wav"); }, parts);
}

TEST(DecodeSound, RefusesWhatIsWrong) {
  const std::string whole = sound_bytes("pcm16.wav");
  expect_refused(whole.substr(0, whole.size() - 1), {"x.wav", "cut off"});
  expect_refused(whole.substr(0, 36), {"x.wav", "no samples"});
  expect_refused(changed(20, std::string("\7\0", 2)), {"format 7 with 16 bits", "ffmpeg"});
  expect_refused(changed(34, std::string("\14\0", 2)), {"format 1 with 12 bits"});
  expect_refused(changed(22, std::string("\0\0", 2)), {"0 channels"});
  expect_refused(changed(24, std::string("\1\0\0\0", 4)), {"1 samples per second"});
  expect_refused(changed(40, std::string("\1\0\0\0", 4)), {"0 samples per channel"});
  if (can_decode_all_sounds()) expect_refused("this is text, not sound", {"x.wav", "not a sound file"});
  std::string float_file = sound_bytes("float.wav");
  float_file.replace(float_file.size() - 4, 4, std::string("\0\0\300\177", 4));  // NaN
  testing::expect_error<DataError>([&] { decode_sound(float_file, "x.wav"); }, {"x.wav", "is not a number"});
}

// A program that writes to a pipe does not know the size.
TEST(DecodeSound, DataToTheEndOfTheFile) {
  for (const std::string& size : {std::string("\0\0\0\0", 4), std::string("\377\377\377\377")})
    EXPECT_EQ(decode_sound(changed(40, size), "x.wav").samples,
              decode_sound(sound_bytes("pcm16.wav"), "x.wav").samples);
}

TEST(FuzzEntries, SoundFile) { testing::run_fuzz_entry("sound_file", fuzz::sound_file); }

// A tone far below both Nyquist frequencies stays what it is, away from the ends.
TEST(Resample, KeepsTones) {
  for (const int64_t from : {8000, 22'050, 44'100, 48'000, 96'000}) {
    Sound sound{.rate = from};
    for (int64_t i = 0; i < from / 4; ++i)
      sound.samples.push_back(
          static_cast<float>(std::sin(2 * M_PI * 300 * static_cast<double>(i) / static_cast<double>(from))));
    const Sound out = resample(sound, 16'000);
    ASSERT_EQ(std::ssize(out.samples), 4000);
    for (int64_t i = 100; i < 3900; ++i)
      ASSERT_NEAR(out.samples[static_cast<size_t>(i)], std::sin(2 * M_PI * 300 * static_cast<double>(i) / 16'000), 5e-3)
          << from;
  }
}

}  // namespace
}  // namespace megalith::media
