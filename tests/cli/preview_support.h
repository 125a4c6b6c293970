// Runs commands in this process, `megalith preview …` above all.
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
  std::string error;  // the message of an Error that it threw

  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

// Runs a command with these words, ready made or in one line with blanks between them.
inline Answer answer_of(int (*command)(Words), const std::vector<std::string>& words) {
  Answer answer;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  try {
    answer.exit_code = command(words);
  } catch (const Error& error) {
    answer.error = error.what();
  }
  answer.out = ::testing::internal::GetCapturedStdout();
  answer.err = ::testing::internal::GetCapturedStderr();
  return answer;
}

inline Answer answer_of(int (*command)(Words), const std::string& line) {
  std::vector<std::string> words;
  std::istringstream stream(line);
  for (std::string word; stream >> word;) words.push_back(word);
  return answer_of(command, words);
}

inline Answer preview(const std::vector<std::string>& words) { return answer_of(run_preview, words); }
inline Answer preview(const std::string& line) { return answer_of(run_preview, line); }

// The option that names one of the reference's models.
inline std::string golden_model(const std::string& name = "llama") {
  return " --model " + (testing::golden_dir() / "hf" / name).string();
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace megalith::cli
