#include "megalith/media/image_header.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/media/image.h"
#include "tests/media/media_support.h"
#include "tests/support/expect.h"

namespace megalith::media {
namespace {

using namespace std::string_literals;

TEST(GoldenImageHeader, KnowsTheSizeOfEveryImage) {
  const auto golden = testing::golden_json("hf/vision/images.json");
  for (const auto& [file, image] : golden.at("images").items()) {
    SCOPED_TRACE(file);
    const ImageHeader header = read_image_header(golden_image(file));
    EXPECT_EQ(header.width, image.at("width").get<int64_t>());
    EXPECT_EQ(header.height, image.at("height").get<int64_t>());
    EXPECT_EQ(header.format, file.ends_with(".jpg") ? ImageFormat::kJpeg : ImageFormat::kPng);
  }
}

TEST(ImageHeader, KnowsWebpInItsThreeKinds) {
  for (const char* file : {"lossy.webp", "lossless.webp", "alpha.webp"}) {
    SCOPED_TRACE(file);
    const ImageHeader header = read_image_header(std::filesystem::path("tests/data/media") / file);
    EXPECT_EQ(header.width, 53);
    EXPECT_EQ(header.height, 37);
    EXPECT_EQ(format_name(header.format), "WebP");
  }
}

// The size stands early: the rest of the file need not be there.
TEST(ImageHeader, NeedsTheFirstBytesOnly) {
  const std::string jpeg = io::read_text_file("tests/data/media/optimized.jpg", 1 << 30);
  EXPECT_EQ(read_image_header(jpeg.substr(0, 400), "photo").width, 53);
  const std::string png = io::read_text_file("tests/data/media/rgb16.png", 1 << 30);
  EXPECT_EQ(read_image_header(png.substr(0, 33), "deep").height, 37);
}

void expect_refused(const std::string& bytes, const std::string& message) {
  testing::expect_error<DataError>([&] { read_image_header(bytes, "dir/a.xyz"); }, {message});
}

TEST(ImageHeader, NamesOtherFormatsAndHowToConvertThem) {
  const auto line = [](const std::string& format) {
    return "dir/a.xyz: " + format +
           " images are not read; JPEG, PNG and WebP are. Convert it: magick 'dir/a.xyz' 'dir/a.png'";
  };
  expect_refused("GIF89a......", line("GIF"));
  expect_refused("BM..........", line("BMP"));
  expect_refused("II*\0........"s, line("TIFF"));
  expect_refused("MM\0*........"s, line("TIFF"));
  expect_refused(
      "\0\0\0\x1c"
      "ftypavif...."s,
      line("AVIF"));
  expect_refused(
      "\0\0\0\x1c"
      "ftypheic...."s,
      line("HEIC"));
  expect_refused("hello", "dir/a.xyz: not an image that is known here (JPEG, PNG and WebP are read)");
}

TEST(ImageHeader, RefusesEmptyCutAndDamagedFiles) {
  expect_refused("", "dir/a.xyz: the image is empty (0 bytes)");
  expect_refused("\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0"s,
                 "the file ends after 18 bytes, inside its header; it was cut off");
  expect_refused("\xff\xd8\xff\xe0"s, "the file ends after 4 bytes");
  expect_refused("\xff\xd8\xff\xe0\0\4ab\1\2"s, "a JPEG file without a marker at byte 8");
  expect_refused("\xff\xd8\xff\xd9"s, "a JPEG file without a frame header");
  expect_refused("RIFF\4\0\0\0WEBPABCD"s, "a WebP file without an image chunk");
  expect_refused("\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\0\0\0\0\5"s, "the image has 0 x 5 pixels");
  testing::expect_error<DataError>([] { read_image_header(std::filesystem::path("no/such.png")); }, {"no/such.png"});
}

// A few bytes may promise an image of many gigabytes.
TEST(ImageHeader, RefusesDecompressionBombs) {
  expect_refused(
      "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x4e\x20\0\0\x4e\x20"s,
      "dir/a.xyz: the image has 20000 x 20000 pixels, more than the 178956970 that are decoded. Make it smaller");
  expect_refused("\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\xff\xff\xff\xff\xff\xff\xff\xff"s, "4294967295 x 4294967295 pixels");
  EXPECT_EQ(read_image_header("\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x4e\x20\0\0\0\1"s, "long").width, 20000);
}

}  // namespace
}  // namespace megalith::media
