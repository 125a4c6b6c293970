// The words and the exit code of a program that an error ends.
#include "megalith/run/exit_code.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace megalith::run {
namespace {

TEST(ErrorText, OfLibtorchHasNoStack) {
  try {
    at::ones({2}).view({3});
    FAIL() << "libtorch accepted a view of another size";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("frame #0"), std::string::npos) << "libtorch no longer adds its stack";
    const std::string text = error_text(error);
    EXPECT_NE(text.find("shape '[3]' is invalid for input of size 2"), std::string::npos) << text;
    EXPECT_EQ(text.find("frame #"), std::string::npos) << text;
    EXPECT_EQ(exit_code_of(error), kFailed);
  }
}

TEST(ErrorText, OfOursIsKeptWhole) {
  const ConfigError error("tp 3\n  heads 4");
  EXPECT_EQ(error_text(error), "tp 3\n  heads 4");
  EXPECT_EQ(exit_code_of(error), kBadInput);
}

}  // namespace
}  // namespace megalith::run
