#include <gtest/gtest.h>

#include "fuzz/entries.h"
#include "tests/support/fuzz_corpus.h"

namespace megalith::media {
namespace {

TEST(FuzzEntries, ImageFile) { testing::run_fuzz_entry("image_file", fuzz::image_file); }
#ifdef MEGALITH_VIDEO
TEST(FuzzEntries, VideoFile) { testing::run_fuzz_entry("video_file", fuzz::video_file); }
#endif

}  // namespace
}  // namespace megalith::media
