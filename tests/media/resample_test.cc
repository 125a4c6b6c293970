#include "megalith/media/resample.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "megalith/media/resample_internal.h"
#include "tests/media/media_support.h"

namespace megalith::media {
namespace {

// Pillow's own bicubic and torchvision's, byte for byte, over all images and kinds of processors.
TEST(GoldenResample, EqualsPillowAndTorchvision) {
  const auto golden = testing::golden_json("hf/vision/images.json");
  int compared = 0;
  for (const auto& [file, image] : golden.at("images").items()) {
    const Image rgb = to_rgb(decode_file(golden_image(file)));
    for (const auto& [kind, process] : image.at("process").items()) {
      if (process.contains("error")) continue;
      SCOPED_TRACE(fmt::format("{} for {}", file, kind));
      const auto width = process.at("width").get<int64_t>();
      const auto height = process.at("height").get<int64_t>();
      EXPECT_EQ(sha256(resize(rgb, width, height, Resampler::kPillow).bytes()),
                process.at("resized_sha256").get<std::string>());
      EXPECT_EQ(sha256(resize(rgb, width, height, Resampler::kAten).bytes()),
                process.at("torchvision_sha256").get<std::string>());
      ++compared;
    }
  }
  EXPECT_GT(compared, 0);
}

Image noise(ImageMode mode, int64_t width, int64_t height) {
  Image image(mode, width, height);
  std::mt19937 random(static_cast<uint32_t>(width * 1000 + height));
  for (size_t i = 0; i < image.bytes().size(); ++i) image.data[i] = static_cast<uint8_t>(random());
  return image;
}

// Vectors and plain loops give the same bytes; odd sizes, single pixels, one row, large factors.
TEST(Resample, VectorsEqualPlainLoops) {
  const std::vector<std::array<int64_t, 3>> cases = {{1, 1, 9},    {7, 5, 3},    {33, 17, 34}, {100, 3, 11},
                                                     {64, 64, 64}, {129, 31, 8}, {5, 2, 200}};
  for (const auto& [in, other, out] : cases) {
    for (const ImageMode mode : {ImageMode::kGrey, ImageMode::kRgb, ImageMode::kCmyk}) {
      for (const Resampler resampler : {Resampler::kPillow, Resampler::kAten}) {
        SCOPED_TRACE(fmt::format("{} to {}, {} beside, mode {}", in, out, other, static_cast<int>(mode)));
        const FilterTaps taps = make_taps(in, out, resampler);
        const Image wide = noise(mode, in, other);
        Image fast(mode, out, other);
        Image plain(mode, out, other);
        filter_rows(wide, fast, taps);
        filter_rows(wide, plain, taps, false);
        EXPECT_TRUE(std::ranges::equal(fast.bytes(), plain.bytes()));
        const Image tall = noise(mode, other, in);
        Image fast_tall(mode, other, out);
        Image plain_tall(mode, other, out);
        filter_columns(tall, fast_tall, taps);
        filter_columns(tall, plain_tall, taps, false);
        EXPECT_TRUE(std::ranges::equal(fast_tall.bytes(), plain_tall.bytes()));
      }
    }
  }
}

TEST(Resample, KeepsAFlatColorAndTheKey) {
  Image image(ImageMode::kRgb, 31, 17);
  std::fill_n(image.data.get(), image.bytes().size(), uint8_t{200});
  image.transparent = Color{200, 200, 200};
  for (const Resampler resampler : {Resampler::kPillow, Resampler::kAten}) {
    const Image out = resize(image, 90, 5, resampler);
    EXPECT_TRUE(std::ranges::all_of(out.bytes(), [](uint8_t byte) { return byte == 200; }));
    EXPECT_EQ(out.transparent, image.transparent);
  }
}

}  // namespace
}  // namespace megalith::media
