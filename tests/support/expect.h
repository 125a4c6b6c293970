// Expectations that several tests share.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "megalith/base/error.h"

namespace megalith::testing {

// Expects `part` somewhere in `text`.
inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in:\n" << text;
}

// Returns the message of the E that `body` throws; empty when it does not throw.
template <typename E = Error, typename Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

// `body` throws an E whose message has all parts.
template <typename E, typename Body>
void expect_error(Body&& body, const std::vector<std::string>& parts) {
  try {
    body();
    ADD_FAILURE() << "no error";
  } catch (const E& error) {
    for (const std::string& part : parts) expect_contains(error.what(), part);
  }
}

}  // namespace megalith::testing
