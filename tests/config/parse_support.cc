#include "tests/config/parse_support.h"

#include <unistd.h>

#include <atomic>
#include <fstream>

#include "megalith/base/error.h"

namespace megalith::config {

std::string error_of(const Words& words, Dialect dialect) {
  try {
    parse_arguments(dialect, words);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << part << "\" is not in:\n" << text;
}

Words shell_words(const std::string& line) {
  Words words;
  std::string word;
  bool inside = false;
  char quote = '\0';
  for (char c : line) {
    if (quote != '\0') {
      if (c == quote)
        quote = '\0';
      else
        word += c;
    } else if (c == '"' || c == '\'') {
      quote = c;
      inside = true;
    } else if (c == ' ' || c == '\t') {
      if (inside) words.push_back(word);
      word.clear();
      inside = false;
    } else {
      word += c;
      inside = true;
    }
  }
  if (inside) words.push_back(word);
  return words;
}

TempFile::TempFile(const std::string& name, const std::string& content) {
  static std::atomic<int> count{0};
  const auto folder = std::filesystem::temp_directory_path() /
                      ("megalith_config_test." + std::to_string(getpid()) + "." + std::to_string(count++));
  std::filesystem::create_directories(folder);
  path_ = folder / name;
  std::ofstream(path_) << content;
}

TempFile::~TempFile() {
  std::error_code ignored;
  std::filesystem::remove_all(path_.parent_path(), ignored);
}

}  // namespace megalith::config
