// Short ways to parse words in a test.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "megalith/config/parser.h"

namespace megalith::config {

using Words = std::vector<std::string>;

inline ParseResult parse(const Words& words, Dialect dialect = Dialect::kTrain) {
  return parse_arguments(dialect, words);
}
inline TrainingArguments args_of(const Words& words, Dialect dialect = Dialect::kTrain) {
  return parse(words, dialect).args;
}
// The message of the ConfigError that parsing must end with; "" when it does not.
std::string error_of(const Words& words, Dialect dialect = Dialect::kTrain);

// True when `text` holds `part`; the failure shows both.
::testing::AssertionResult contains(const std::string& text, const std::string& part);

// The words of a line as a shell would see them: blanks separate, single and double quotes hold together.
Words shell_words(const std::string& line);

// A file that lives as long as the object.
class TempFile {
 public:
  TempFile(const std::string& name, const std::string& content);
  ~TempFile();
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace megalith::config
