#include "tests/support/tokenizers.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "megalith/base/error.h"

namespace megalith::testing {

std::filesystem::path tokenizer_folder(const std::string& name) {
  return std::filesystem::path(MEGALITH_TOKENIZERS_DIR) / name;
}

std::vector<std::string> tokenizer_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(MEGALITH_TOKENIZERS_DIR))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

TemporaryFolder::TemporaryFolder(const Files& files) {
  std::string name = (std::filesystem::temp_directory_path() / "megalith-test-XXXXXX").string();
  check(mkdtemp(name.data()) != nullptr, "{} cannot be made", name);
  path_ = name;
  for (const auto& [file, content] : files) write(file, content);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TemporaryFolder::write(const std::string& name, const std::string& content) const {
  std::ofstream file(path_ / name, std::ios::binary);
  file << content;
  check(file.good(), "{} cannot be written", (path_ / name).string());
}

}  // namespace megalith::testing
