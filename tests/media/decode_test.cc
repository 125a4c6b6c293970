#include "megalith/media/decode.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/media/image.h"
#include "megalith/media/resample.h"
#include "tests/media/media_support.h"
#include "tests/support/expect.h"

namespace megalith::media {
namespace {

const std::filesystem::path kOwn = "tests/data/media";

std::string own_bytes(const std::string& file) { return io::read_text_file(kOwn / file, 1 << 30); }

// Decoded pixels, byte for byte: JPEG in all its samplings, palettes, bits, grey, alpha, CMYK.
TEST(GoldenDecode, EqualsPillow) {
  const auto golden = testing::golden_json("hf/vision/images.json");
  for (const auto& [file, image] : golden.at("images").items()) {
    SCOPED_TRACE(file);
    const Image decoded = decode_file(golden_image(file));
    EXPECT_EQ(decoded.width, image.at("width").get<int64_t>());
    EXPECT_EQ(decoded.height, image.at("height").get<int64_t>());
    EXPECT_EQ(sha256(to_rgb(decode_file(golden_image(file))).bytes()), image.at("rgb_sha256").get<std::string>());
    if (image.contains("on_white_sha256")) {
      EXPECT_EQ(sha256(on_white(decode_file(golden_image(file))).bytes()),
                image.at("on_white_sha256").get<std::string>());
    }
  }
}

// Kinds that the golden set lacks: WebP, 16 bits, 2 and 4 bits, interlacing, color keys, palettes with several alphas.
TEST(Decode, EqualsPillowInRareKinds) {
  const auto expected = nlohmann::json::parse(own_bytes("expected.json"));
  EXPECT_GE(expected.size(), 11U);
  for (const auto& [file, image] : expected.items()) {
    SCOPED_TRACE(file);
    EXPECT_EQ(sha256(to_rgb(decode_file(kOwn / file)).bytes()), image.at("rgb_sha256").get<std::string>());
    if (image.contains("on_white_sha256")) {
      EXPECT_EQ(sha256(on_white(decode_file(kOwn / file)).bytes()), image.at("on_white_sha256").get<std::string>());
    }
    if (image.contains("resized_23x29_sha256")) {
      Image small = to_rgb(resize(decode_file(kOwn / file), 23, 29, Resampler::kPillow));
      EXPECT_EQ(sha256(small.bytes()), image.at("resized_23x29_sha256").get<std::string>());
    }
  }
}

TEST(Decode, KnowsItsLibraries) {
  EXPECT_TRUE(can_decode(ImageFormat::kJpeg));
  EXPECT_TRUE(can_decode(ImageFormat::kPng));
  EXPECT_TRUE(can_decode(ImageFormat::kWebp));
}

TEST(Decode, RefusesFilesThatWereCutOff) {
  for (const std::string file : {"lossy.webp", "rgb16.png", "optimized.jpg", "interlaced.png", "lossless.webp"}) {
    const std::string bytes = own_bytes(file);
    for (const double part : {0.3, 0.6, 0.95}) {
      const std::string cut = bytes.substr(0, static_cast<size_t>(static_cast<double>(bytes.size()) * part));
      try {
        decode_image(cut, file);
        ADD_FAILURE() << file << " was read although " << part << " of it is missing";
      } catch (const DataError& error) {
        EXPECT_TRUE(std::string(error.what()).starts_with(file + ": ")) << error.what();
        EXPECT_NE(std::string(error.what()).find("cut off"), std::string::npos) << error.what();
      }
    }
  }
}

TEST(Decode, RefusesAWrongChecksum) {
  std::string bytes = own_bytes("interlaced.png");
  bytes[bytes.find("IDAT") + 40] ^= 0x55;
  testing::expect_error<DataError>([&] { decode_image(bytes, "a/photo.png"); }, {"a/photo.png: a damaged PNG file: "});
}

TEST(Decode, RefusesAnimations) {
  testing::expect_error<DataError>([&] { decode_image(own_bytes("animated.webp"), "moves.webp"); },
                                   {"moves.webp: an animated WebP. Give its frames as a video, or keep the first one: "
                                    "magick 'moves.webp[0]' 'moves.png'"});
  testing::expect_error<DataError>([&] { decode_image(own_bytes("animated.png"), "moves.png"); }, {"an animated PNG"});
}

}  // namespace
}  // namespace megalith::media
