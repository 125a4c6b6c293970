// Video files that PyAV wrote, and the frames that it reads from them (tests/data/media/make_videos.py).
#include "megalith/media/video_file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "megalith/base/error.h"
#include "tests/media/media_support.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::media {
namespace {

std::string video(const std::string& name) { return "tests/data/media/video/" + name; }

std::vector<Image> frames_at(const std::string& path, const std::vector<int64_t>& numbers) {
  std::vector<Image> frames;
  read_video_frames(path, numbers, [&](size_t i, Image frame) {
    EXPECT_EQ(i, frames.size());
    frames.push_back(std::move(frame));
  });
  return frames;
}

// FFmpeg's versions may round differently: a step of 255 is allowed.
void expect_frame(const Image& frame, const std::string& file) {
  const Image expected = decode_file(video(file));
  ASSERT_EQ(frame.bytes().size(), expected.bytes().size()) << file;
  int worst = 0;
  for (size_t i = 0; i < frame.bytes().size(); ++i)
    worst = std::max(worst, std::abs(int{frame.bytes()[i]} - int{expected.bytes()[i]}));
  EXPECT_LE(worst, 1) << file;
}

TEST(VideoFile, ContainersAreToldByTheirBeginning) {
  for (const char* name : {"clip.mp4", "clip.mkv", "clip.webm", "sound.mp4"})
    EXPECT_TRUE(is_video_container(io::read_text_file(video(name), 1 << 20))) << name;
  for (const char* name : {"clip.mp4.0.png", "sound.mp4.wav"})
    EXPECT_FALSE(is_video_container(io::read_text_file(video(name), 1 << 20))) << name;
  EXPECT_FALSE(is_video_container(""));
  EXPECT_FALSE(is_video_container("RIFF"));
}

#ifdef MEGALITH_VIDEO
// The mean of both channels, as PyAV decodes them; FFmpeg's versions may round differently.
TEST(VideoFile, SoundIsThatOfPyAv) {
  const auto header = read_video_sound_header(video("sound.mp4"));
  ASSERT_TRUE(header.has_value());
  EXPECT_EQ(header->rate, 8000);
  EXPECT_EQ(header->channels, 2);
  EXPECT_EQ(header->samples, 13'024);
  const Sound sound = decode_video_sound(video("sound.mp4"));
  const Sound expected = decode_sound(io::read_text_file(video("sound.mp4.wav"), 1 << 20), "sound.mp4.wav");
  EXPECT_EQ(sound.rate, 8000);
  ASSERT_EQ(std::ssize(sound.samples), 13'024);
  double loudest = 0;
  for (size_t i = 0; i < sound.samples.size(); ++i) {
    ASSERT_NEAR(sound.samples[i], expected.samples[i], 1e-3) << i;
    loudest = std::max(loudest, std::abs(static_cast<double>(sound.samples[i])));
  }
  EXPECT_GT(loudest, 0.2);
}

TEST(VideoFile, FilesWithoutSoundSaySo) {
  EXPECT_FALSE(read_video_sound_header(video("clip.mp4")).has_value());
  testing::expect_error<DataError>([] { decode_video_sound(video("clip.mp4")); }, {"clip.mp4: the file has no sound"});
  const testing::TempFolder folder;
  std::ofstream(folder / "no.mp4") << "nothing of the kind";
  testing::expect_error<DataError>([&] { read_video_sound_header(folder / "no.mp4"); }, {"no.mp4"});
}

TEST(VideoFile, SaysHowLongItIs) {
  const VideoInfo mp4 = read_video_info(video("clip.mp4"));
  EXPECT_EQ(mp4.frames, 13);
  EXPECT_DOUBLE_EQ(mp4.seconds, 3.25);
  EXPECT_DOUBLE_EQ(mp4.per_second, 4);
  EXPECT_EQ(mp4.size, (ImageSize{64, 48}));
  // These do not say their number of frames, and their length only as a whole.
  const VideoInfo mkv = read_video_info(video("clip.mkv")), webm = read_video_info(video("clip.webm"));
  EXPECT_EQ(mkv.frames, 6);
  EXPECT_DOUBLE_EQ(mkv.seconds, 2);
  EXPECT_EQ(webm.frames, 9);
  EXPECT_DOUBLE_EQ(webm.seconds, 1.8);
}

TEST(VideoFile, BytesAreReadLikeFiles) {
  const std::string bytes = io::read_text_file(video("clip.mkv"), 1 << 20);
  const VideoInfo info = read_video_info(bytes, "clip");
  EXPECT_EQ(info.frames, 6);
  EXPECT_DOUBLE_EQ(info.seconds, 2);
  std::vector<Image> frames;
  const std::array<int64_t, 1> numbers{5};
  read_video_frames(bytes, "clip", numbers, [&](size_t, Image frame) { frames.push_back(std::move(frame)); });
  ASSERT_EQ(frames.size(), 1U);
  expect_frame(frames[0], "clip.mkv.5.png");
  const std::string with_sound = io::read_text_file(video("sound.mp4"), 1 << 20);
  EXPECT_EQ(read_video_sound_header(with_sound, "sound")->samples, 13'024);
  EXPECT_EQ(decode_video_sound(with_sound, "sound").samples, decode_video_sound(video("sound.mp4")).samples);
  EXPECT_FALSE(read_video_sound_header(bytes, "clip").has_value());
  testing::expect_error<DataError>([&] { decode_video_sound(bytes, "clip"); }, {"clip: the file has no sound"});
  testing::expect_error<DataError>([] { read_video_info("no video", "odd"); }, {"odd: "});
  testing::expect_error<DataError>([] { read_video_info("", "empty"); }, {"empty: "});
}

TEST(VideoFile, FramesAreThoseOfPyAv) {
  const std::vector<Image> frames = frames_at(video("clip.mp4"), {0, 6, 6, 12});
  ASSERT_EQ(frames.size(), 4U);
  expect_frame(frames[0], "clip.mp4.0.png");
  expect_frame(frames[1], "clip.mp4.6.png");
  expect_frame(frames[2], "clip.mp4.6.png");
  expect_frame(frames[3], "clip.mp4.12.png");
  expect_frame(frames_at(video("clip.mkv"), {5})[0], "clip.mkv.5.png");
  expect_frame(frames_at(video("clip.webm"), {8})[0], "clip.webm.8.png");
}

// Headers and edit lists may promise more frames than the decoder gives.
TEST(VideoFile, TheLastFrameTakesThePlaceOfMissingOnes) {
  const std::vector<Image> frames = frames_at(video("clip.mkv"), {5, 6, 100});
  ASSERT_EQ(frames.size(), 3U);
  expect_frame(frames[2], "clip.mkv.5.png");
}

TEST(VideoFile, BadFilesAreNamed) {
  const testing::TempFolder folder;
  const auto write = [&](const std::string& name, const std::string& bytes) {
    std::ofstream(folder / name, std::ios::binary) << bytes;
    return (folder / name).string();
  };
  const std::string whole = io::read_text_file(video("clip.mp4"), 1 << 20);
  testing::expect_error<DataError>([&] { read_video_info(folder / "gone.mp4"); },
                                   {"gone.mp4: the video does not exist"});
  for (const std::string& bytes : {std::string(), std::string("no video at all"), whole.substr(0, 500)})
    testing::expect_error<DataError>([&] { read_video_info(write("bad.mp4", bytes)); }, {"bad.mp4: "});
  // The header is there, and the frames are cut off.
  const std::string cut = write("cut.mp4", whole.substr(0, 2500));
  EXPECT_EQ(read_video_info(cut).frames, 13);
  testing::expect_error<DataError>([&] { frames_at(cut, {0, 12}); }, {"cut.mp4: frame ", "cannot be decoded"});
  std::string flipped = whole;
  for (size_t i = 1800; i < 1900; ++i) flipped[i] = static_cast<char>(flipped[i] ^ 0x5a);
  testing::expect_error<DataError>([&] { frames_at(write("flipped.mp4", flipped), {0, 12}); }, {"flipped.mp4: frame "});
  // Neither a playlist, which names other files, nor sound.
  const std::string list = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n" + video("clip.mp4") + "\n#EXT-X-ENDLIST\n";
  testing::expect_error<DataError>([&] { read_video_info(write("list.m3u8", list)); }, {"list.m3u8: "});
  testing::expect_error<DataError>([&] { read_video_info("tests/data/media/rgb16.png"); }, {"rgb16.png: "});
}

// No damage leads anywhere but to a message or to frames.
TEST(VideoFile, DamageIsSurvived) {
  const testing::TempFolder folder;
  for (const char* name : {"clip.mp4", "clip.mkv", "clip.webm"}) {
    const std::string whole = io::read_text_file(video(name), 1 << 20);
    int refused = 0;
    for (size_t at = 0; at < whole.size(); at += whole.size() / 40) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ 0xff);
      const auto path = (folder / name).string();
      std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
      try {
        const VideoInfo info = read_video_info(path);
        if (info.size.width * info.size.height <= 1 << 20) frames_at(path, {0, std::min<int64_t>(info.frames, 40) - 1});
      } catch (const DataError& error) {
        testing::expect_contains(error.what(), name);
        ++refused;
      }
    }
    EXPECT_GT(refused, 0) << name;
  }
}
#else
TEST(VideoFile, ABuildWithoutFfmpegSaysSo) {
  testing::expect_error<ConfigError>(
      [] { read_video_info(video("clip.mp4")); },
      {"clip.mp4: video files are read with FFmpeg's libraries", "libavformat-dev", "as a list of images"});
}
#endif

}  // namespace
}  // namespace megalith::media
