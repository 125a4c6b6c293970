#include "megalith/tokenizer/utf8.h"

#include <gtest/gtest.h>

namespace megalith::tokenizer {
namespace {

TEST(Utf8, ValidTextStaysAsItIs) {
  const std::string text = "aé漢😀\0z";
  EXPECT_EQ(first_invalid_utf8(text), std::nullopt);
  EXPECT_EQ(replace_invalid_utf8(text), text);
}

}  // namespace
}  // namespace megalith::tokenizer
