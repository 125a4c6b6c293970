#include "megalith/base/env.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "megalith/base/error.h"

namespace megalith {
namespace {

TEST(Env, EmptyCountsAsUnset) {
  setenv("MEGALITH_TEST_VARIABLE", "", 1);
  EXPECT_EQ(env_string("MEGALITH_TEST_VARIABLE"), std::nullopt);
  EXPECT_EQ(env_int("MEGALITH_TEST_VARIABLE"), std::nullopt);
}

TEST(Env, ExactlyTellsEmptyFromUnset) {
  setenv("MEGALITH_TEST_VARIABLE", "", 1);
  EXPECT_EQ(env_exact("MEGALITH_TEST_VARIABLE"), "");
  setenv("MEGALITH_TEST_VARIABLE", "0,1", 1);
  EXPECT_EQ(env_exact("MEGALITH_TEST_VARIABLE"), "0,1");
  unsetenv("MEGALITH_TEST_VARIABLE");
  EXPECT_EQ(env_exact("MEGALITH_TEST_VARIABLE"), std::nullopt);
}

TEST(Env, AWrongNumberNamesTheVariable) {
  setenv("MEGALITH_TEST_VARIABLE", "four", 1);
  try {
    env_int("MEGALITH_TEST_VARIABLE");
    FAIL() << "did not throw";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("MEGALITH_TEST_VARIABLE"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("four"), std::string::npos);
  }
}

TEST(Env, Flags) {
  setenv("MEGALITH_TEST_VARIABLE", "Yes", 1);
  EXPECT_TRUE(env_flag("MEGALITH_TEST_VARIABLE"));
  setenv("MEGALITH_TEST_VARIABLE", "off", 1);
  EXPECT_FALSE(env_flag("MEGALITH_TEST_VARIABLE"));
  setenv("MEGALITH_TEST_VARIABLE", "maybe", 1);
  EXPECT_THROW(env_flag("MEGALITH_TEST_VARIABLE"), ConfigError);
}

}  // namespace
}  // namespace megalith
