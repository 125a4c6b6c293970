#include "megalith/media/image_processor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "megalith/base/error.h"
#include "megalith/media/resample.h"
#include "tests/media/media_support.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::media {
namespace {

ImageProcessorSettings golden_settings(const nlohmann::json& kind) {
  ImageProcessorSettings settings;
  settings.patch_size = kind.at("patch").get<int64_t>();
  settings.min_pixels = kind.at("min_pixels").get<int64_t>();
  settings.max_pixels = kind.at("max_pixels").get<int64_t>();
  settings.mean = kind.at("mean").get<std::array<double, 3>>();
  settings.std = kind.at("std").get<std::array<double, 3>>();
  return settings;
}

// Token counts have no tolerance: 200 sizes through every processor, and through the pre-resize.
TEST(GoldenImageProcessor, SizesAndTokens) {
  const auto golden = testing::golden_json("hf/vision/sizes.json");
  // The columns stand in this order.
  const std::vector<std::string> kinds = {"qwen2_vl", "qwen2_vl_small", "qwen2_vl_grow", "qwen3_vl", "qwen3_vl_small"};
  ASSERT_EQ(golden.at("kinds").size(), kinds.size());
  for (const auto& row : golden.at("sizes")) {
    const ImageSize size{row[1].get<int64_t>(), row[0].get<int64_t>()};
    for (size_t i = 0; i < kinds.size(); ++i) {
      SCOPED_TRACE(fmt::format("{} x {} for {}", size.width, size.height, kinds[i]));
      const auto& numbers = golden.at("kinds").at(kinds[i]);
      ImageProcessorSettings settings;
      settings.patch_size = numbers[0].get<int64_t>();
      settings.min_pixels = numbers[1].get<int64_t>();
      settings.max_pixels = numbers[2].get<int64_t>();
      const ImageProcessor processor(settings);
      const auto& expected = row[i + 2];
      if (expected.is_null()) {
        EXPECT_THROW(processor.model_size(size, "x"), DataError);
        continue;
      }
      const ImageSize final_size = processor.model_size(size, "x");
      EXPECT_EQ(final_size, (ImageSize{expected[1].get<int64_t>(), expected[0].get<int64_t>()}));
      EXPECT_EQ(processor.tokens({1, final_size.height / settings.patch_size, final_size.width / settings.patch_size}),
                expected[2].get<int64_t>());
    }
    const auto& pre = row[kinds.size() + 2];
    EXPECT_EQ(ImageProcessor(ImageProcessorSettings{}).pre_resized(size, "x"),
              (ImageSize{pre[1].get<int64_t>(), pre[0].get<int64_t>()}));
  }
}

// LLaMA-Factory's step, byte for byte: shrinking, growing, palettes by nearest indices, color keys turned white.
TEST(GoldenImageProcessor, PreResize) {
  const auto golden = testing::golden_json("hf/vision/images.json");
  for (const auto& [file, image] : golden.at("images").items()) {
    for (const auto& [limits, expected] : image.at("pre_resize").items()) {
      SCOPED_TRACE(fmt::format("{} with the {} limits", file, limits));
      for (const auto& [kind, grid] : expected.at("grids").items()) {
        ImageProcessorSettings settings = golden_settings(golden.at("kinds").at(kind));
        settings.image_max_pixels = expected.at("max_pixels").get<int64_t>();
        settings.image_min_pixels = expected.at("min_pixels").get<int64_t>();
        const ImageProcessor processor(settings);
        EXPECT_EQ(processor.grid({image.at("width").get<int64_t>(), image.at("height").get<int64_t>()}, file),
                  (PatchGrid{grid[0].get<int64_t>(), grid[1].get<int64_t>(), grid[2].get<int64_t>()}));
        const Image resized = processor.pre_resize(decode_file(golden_image(file)), file);
        const char* digest = expected.contains("on_white_sha256") ? "on_white_sha256" : "rgb_sha256";
        EXPECT_EQ(sha256(resized.bytes()), expected.at(digest).get<std::string>());
      }
    }
  }
}

// Rows of patches. The golden rows come from Pillow's resampler; the golden file says how far torchvision is away from
// it, in steps of 1/255. Without that difference, half precision is all that is lost.
TEST(GoldenImageProcessor, PatchRows) {
  const auto golden = testing::golden_json("hf/vision/images.json");
  const TensorBytes tensors(testing::golden_dir() / "hf/vision/images.safetensors");
  int compared = 0;
  for (const auto& [file, image] : golden.at("images").items()) {
    for (const auto& [kind, expected] : image.at("process").items()) {
      const std::string name = fmt::format("rows.{}.{}", kind, file);
      if (expected.contains("error") || !tensors.has(name)) continue;
      SCOPED_TRACE(name);
      const ImageProcessor processor(golden_settings(golden.at("kinds").at(kind)));
      const Image rgb = to_rgb(decode_file(golden_image(file)));
      const auto& grid = expected.at("grid_thw");
      const PatchGrid patches{grid[0].get<int64_t>(), grid[1].get<int64_t>(), grid[2].get<int64_t>()};
      EXPECT_EQ(processor.tokens(patches), expected.at("tokens").get<int64_t>());
      const std::vector<float> golden_rows = tensors.halves(name);
      const auto compare = [&](const Image& input, float tolerance) {
        std::vector<float> rows(static_cast<size_t>(processor.patches(patches) * processor.row_width()), NAN);
        processor.patch_rows(input, rows.data(), file);
        EXPECT_LT(largest_difference(rows, processor.row_width(), expected.at("rows"), golden_rows), tolerance);
      };
      const auto step = static_cast<float>(1 / (255 * *std::ranges::min_element(processor.settings().std)));
      compare(rgb, 2e-3F + step * expected.at("torchvision_max_step").get<float>());
      compare(
          resize(rgb, expected.at("width").get<int64_t>(), expected.at("height").get<int64_t>(), Resampler::kPillow),
          2e-3F);
      ++compared;
    }
  }
  EXPECT_GT(compared, 0);
}

ImageProcessorSettings read_text(const std::string& file, const std::string& text) {
  const testing::TempFolder folder;
  std::ofstream(folder.path() / file) << text;
  return read_image_processor(folder.path());
}

TEST(ImageProcessor, ReadsBothSpellings) {
  const auto old = read_text("preprocessor_config.json",
                             R"({"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2,
                                "merge_size": 2, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.1, 0.2, 0.3]})");
  EXPECT_EQ(old.max_pixels, 12845056);
  EXPECT_EQ(old.mean[2], 0.6);
  const auto newer = read_text("preprocessor_config.json",
                               R"({"size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16})");
  EXPECT_EQ(newer.min_pixels, 65536);
  EXPECT_EQ(newer.max_pixels, 16777216);
  EXPECT_EQ(newer.patch_size, 16);
  const auto shared =
      read_text("processor_config.json", R"({"image_processor": {"patch_size": 16, "min_pixels": 4096}})");
  EXPECT_EQ(shared.patch_size, 16);
  EXPECT_EQ(shared.min_pixels, 4096);
}

TEST(ImageProcessor, RefusesWhatItWouldNotDo) {
  const auto refused = [](const std::string& text, const std::string& message) {
    testing::expect_error<DataError>([&] { read_text("preprocessor_config.json", text); }, {message});
  };
  refused(R"({"do_normalize": false})", "\"do_normalize\" is false");
  refused(R"({"rescale_factor": 0.5})", "be 1/255");
  refused(R"({"resample": 2})", "be 3 (bicubic)");
  refused(R"({"image_mean": [1, 2]})", "three numbers");
  refused(R"({"image_std": [1, 0, 1]})", "three positive numbers");
  testing::expect_error<DataError>([] { read_text("other.json", "{}"); }, {"preprocessor_config.json"});
  ImageProcessorSettings settings;
  settings.image_min_pixels = 1 << 30;
  testing::expect_error<ConfigError>([&] { ImageProcessor processor(settings); }, {"image_min_pixels is 1073741824"});
}

TEST(ImageProcessor, RefusesStrips) {
  const ImageProcessor processor(ImageProcessorSettings{});
  // Within the limits a strip is cut to 180 to 1; a longer one would lose its short side.
  EXPECT_EQ(processor.pre_resized({20000, 1}, "strip.png"), (ImageSize{5040, 28}));
  testing::expect_error<DataError>(
      [&] {
        processor.pre_resized({1, 1000000}, "strip.png");
      },
      {"strip.png: 1 x 1000000 pixels", "a side of 0", "image_max_pixels to 1000000"});
  testing::expect_error<DataError>([&] { processor.model_size({1000, 4}, "strip.png"); }, {"at most 200 times"});
}

}  // namespace
}  // namespace megalith::media
