// Runs `megalith preview …` in this process.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/cli/command.h"
#include "tests/support/golden.h"

namespace megalith::cli {

struct Answer {
  int exit_code = -1;
  std::string out;    // stdout: data
  std::string err;    // stderr: talk
  std::string error;  // message of a ConfigError

  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

// The words of `megalith preview`, ready made or in one line with blanks between them.
inline Answer preview(const std::vector<std::string>& words) {
  Answer answer;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  try {
    answer.exit_code = run_preview(words);
  } catch (const ConfigError& error) {
    answer.error = error.what();
  }
  answer.out = ::testing::internal::GetCapturedStdout();
  answer.err = ::testing::internal::GetCapturedStderr();
  return answer;
}

inline Answer preview(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream stream(line);
  for (std::string word; stream >> word;) words.push_back(word);
  return preview(words);
}

// The option that names one of the reference's models.
inline std::string golden_model(const std::string& name = "llama") {
  return " --model " + (testing::golden_dir() / "hf" / name).string();
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace megalith::cli
