// Runs the program itself as a process.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/support/expect.h"
#include "tests/support/subprocess.h"

namespace megalith::testing {

inline ProcessResult megalith(std::vector<std::string> words, const std::map<std::string, std::string>& env = {}) {
  words.insert(words.begin(), MEGALITH_PROGRAM);
  return run_process(words, env);
}

// Bad input: exit code 2, nothing on stdout, one message that names what is wrong.
inline void expect_refused(const ProcessResult& result, const std::string& part) {
  EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
  EXPECT_EQ(result.out, "");
  expect_contains(result.err, part);
  EXPECT_EQ(result.err.find("terminate called"), std::string::npos);
}

}  // namespace megalith::testing
