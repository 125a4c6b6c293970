#include <gtest/gtest.h>

#include "fuzz/entries.h"
#include "tests/support/fuzz_corpus.h"

namespace megalith::media {
namespace {

TEST(FuzzEntries, ImageFile) { testing::run_fuzz_entry("image_file", fuzz::image_file); }

}  // namespace
}  // namespace megalith::media
