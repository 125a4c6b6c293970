#include "megalith/base/error.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

using ::testing::Test;

TEST(Check, PassesSilently) { EXPECT_NO_THROW(check<ConfigError>(true, "never {}", 1)); }

TEST(Check, ThrowsTheAskedKindWithTheFormattedMessage) {
  try {
    check<ConfigError>(false, "tp is {}; allowed: {}", 3, "1, 2");
    FAIL() << "did not throw";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "tp is 3; allowed: 1, 2");
  }
}

TEST(Check, InternalErrorNamesFileAndLine) {
  try {
    check(false, "broken");
    FAIL() << "did not throw";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("error_test.cc:"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace megalith
