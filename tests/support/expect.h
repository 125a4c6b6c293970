// Expectations that several tests share.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace megalith::testing {

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in:\n" << text;
}

}  // namespace megalith::testing
