// A build without PCRE2 or utf8proc says what it lacks.
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/tokenizer/tokenizer.h"
#include "tests/support/expect.h"

namespace megalith::tokenizer {
namespace {

TEST(AbsentLibraries, OpeningATokenizerNamesThem) {
  try {
    Tokenizer::from_json("{}", "some.json");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    testing::expect_contains(error.what(), "some.json: this build has no ");
  }
}

TEST(AbsentLibraries, BytesStillWork) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("aé漢")), "aé漢");
}

}  // namespace
}  // namespace megalith::tokenizer
