#include "megalith/media/video_processor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "megalith/base/error.h"
#include "tests/media/media_support.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::media {
namespace {

// The released settings of a family.
VideoProcessorSettings family_settings(const std::string& family) {
  VideoProcessorSettings settings;
  if (family != "qwen3_vl") return settings;
  settings.limits_all_frames = true;
  settings.model.patch_size = 16;
  settings.model.min_pixels = 4096;
  settings.model.max_pixels = 25165824;
  settings.model.mean = settings.model.std = {0.5, 0.5, 0.5};
  return settings;
}

std::vector<Image> frames_of(const std::string& clip) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(testing::golden_dir() / "hf/vision/videos" / clip))
    files.push_back(entry.path());
  std::ranges::sort(files);
  std::vector<Image> frames;
  for (const auto& file : files) frames.push_back(decode_file(file));
  return frames;
}

// Grids, tokens, and rows of every clip: two different frames per time patch, an odd last one twice.
TEST(GoldenVideoProcessor, Clips) {
  const auto golden = testing::golden_json("hf/vision/videos.json").at("clips");
  const TensorBytes tensors(testing::golden_dir() / "hf/vision/videos.safetensors");
  int compared = 0;
  for (const auto& [name, expected] : golden.items()) {
    SCOPED_TRACE(name);
    const auto clip = expected.at("clip").get<std::string>();
    VideoProcessorSettings settings = family_settings(expected.at("family"));
    settings.video_max_pixels = expected.at("video_max_pixels").get<int64_t>();
    const VideoProcessor processor(settings);
    std::vector<Image> frames = frames_of(clip);
    const PatchGrid grid = processor.grid(std::ssize(frames), {frames[0].width, frames[0].height}, clip);
    EXPECT_EQ(nlohmann::json({grid.t, grid.h, grid.w}), expected.at("grid_thw"));
    EXPECT_EQ(processor.tokens(grid), expected.at("tokens").get<int64_t>());
    const std::string key = "rows." + expected.at("family").get<std::string>() + "." + clip;
    if (!tensors.has(key)) continue;
    const int64_t patch_floats = grid.h * grid.w * processor.row_width();
    std::vector<float> rows(static_cast<size_t>(grid.t * patch_floats), NAN);
    std::vector<Image> prepared;
    for (Image& frame : frames) prepared.push_back(processor.pre_resize(std::move(frame), clip));
    for (int64_t t = 0; t < grid.t; ++t) {
      const size_t first = static_cast<size_t>(2 * t);
      processor.patch_rows(std::span(prepared).subspan(first, std::min<size_t>(2, prepared.size() - first)), grid,
                           rows.data() + t * patch_floats);
    }
    EXPECT_LT(largest_difference(rows, processor.row_width(), expected.at("rows"), tensors.halves(key)), 2e-3F);
    double sum = 0;
    for (const float value : rows) sum += value;
    EXPECT_NEAR(sum / static_cast<double>(rows.size()), expected.at("mean").get<double>(), 1e-5);
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

TEST(GoldenVideoProcessor, SizesOfQwen3) {
  const VideoProcessor processor(family_settings("qwen3_vl"));
  for (const auto& row : testing::golden_json("hf/vision/videos.json").at("resize_qwen3_vl")) {
    SCOPED_TRACE(row.dump());
    const ImageSize size =
        processor.model_size(row[0].get<int64_t>(), {row[2].get<int64_t>(), row[1].get<int64_t>()}, "x");
    EXPECT_EQ(nlohmann::json({size.height, size.width}), row[3]);
  }
  testing::expect_error<DataError>(
      [&] {
        processor.model_size(2, {40, 20000}, "a.mp4");
      },
      {"a.mp4: frames of 40 x 20000 pixels", "at most 200 times"});
}

TEST(GoldenVideoProcessor, SampledFrames) {
  for (const auto& row : testing::golden_json("hf/vision/videos.json").at("sampling").at("llamafactory")) {
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(nlohmann::json(
                  sampled_frames(row.at("frames"), row.at("duration"), row.at("video_fps"), row.at("video_maxlen"))),
              row.at("indices"));
  }
  EXPECT_EQ(std::ssize(sampled_frames(300, 0, 2, 128)), 128);  // a stream that does not say its length
}

TEST(VideoProcessor, RefusesSettingsThatMakeNoSense) {
  VideoProcessorSettings settings;
  settings.video_min_pixels = settings.video_max_pixels + 1;
  testing::expect_error<ConfigError>([&] { VideoProcessor{settings}; }, {"video_min_pixels", "video_max_pixels"});
  settings = {};
  settings.model.max_pixels = 1;
  testing::expect_error<ConfigError>([&] { VideoProcessor{settings}; }, {"video_preprocessor_config.json"});
  testing::expect_error<DataError>(
      [&] {
        VideoProcessor({}).grid(2, {1'000'000, 1}, "a.mp4");
      },
      {"a.mp4: 1000000 x 1 pixels", "video_max_pixels to 1000000 or more"});
}

TEST(VideoProcessor, ReadsTheModelsFiles) {
  const testing::TempFolder folder;
  const auto write = [&](const char* name, const std::string& text) { std::ofstream(folder / name) << text; };
  testing::expect_error<DataError>([&] { read_video_processor(folder.path(), false); }, {"preprocessor_config.json"});
  // Older folders have one file for images and videos.
  write("preprocessor_config.json", R"({"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14})");
  EXPECT_EQ(read_video_processor(folder.path(), false).model.max_pixels, 12845056);
  write("processor_config.json", R"({"video_processor": {"size": {"shortest_edge": 100, "longest_edge": 200}}})");
  EXPECT_EQ(read_video_processor(folder.path(), false).model.min_pixels, 100);
  write("video_preprocessor_config.json",
        R"({"size": {"shortest_edge": 4096, "longest_edge": 25165824}, "image_mean": [0.5, 0.5, 0.5]})");
  const VideoProcessorSettings read = read_video_processor(folder.path(), true);
  EXPECT_TRUE(read.limits_all_frames);
  EXPECT_EQ(read.model.patch_size, 16);
  EXPECT_EQ(read.model.min_pixels, 4096);
  EXPECT_EQ(read.model.max_pixels, 25165824);
  EXPECT_EQ(read.model.std[1], 0.5);
  write("video_preprocessor_config.json", R"({"do_resize": false})");
  testing::expect_error<DataError>([&] { read_video_processor(folder.path(), true); },
                                   {"video_preprocessor_config.json", "do_resize"});
}

}  // namespace
}  // namespace megalith::media
