#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/media/decode.h"
#include "tests/media/media_support.h"
#include "tests/support/expect.h"

namespace megalith::media {
namespace {

// A build without one of the libraries names it, and how to get it.
TEST(AbsentDecoder, IsNamed) {
  if (!can_decode(ImageFormat::kPng))
    testing::expect_error<ConfigError>([] { decode_file("tests/data/media/rgb16.png"); }, {"no libpng", "libpng-dev"});
  if (!can_decode(ImageFormat::kJpeg))
    testing::expect_error<ConfigError>([] { decode_file("tests/data/media/optimized.jpg"); },
                                       {"no libjpeg-turbo", "libjpeg-dev"});
  if (!can_decode(ImageFormat::kWebp))
    testing::expect_error<ConfigError>([] { decode_file("tests/data/media/lossy.webp"); },
                                       {"no libwebp", "libwebp-dev"});
}

}  // namespace
}  // namespace megalith::media
