#include "tests/support/tokenizers.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

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

std::string tiktoken_vocabulary(const std::vector<std::string>& tokens) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto base64 = [kDigits](const std::string& bytes) {
    std::string text;
    for (size_t at = 0; at < bytes.size(); at += 3) {
      uint32_t bits = 0;
      for (size_t i = 0; i < 3; ++i)
        bits = bits << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0);
      for (size_t i = 0; i < 4; ++i) text += at + i <= bytes.size() ? kDigits[bits >> (18 - 6 * i) & 63] : '=';
    }
    return text;
  };
  nlohmann::json list = nlohmann::json::array();
  const auto add = [&](const std::string& bytes) {
    list.push_back({{"rank", list.size()}, {"token_bytes", base64(bytes)}, {"token_str", ""}});
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const std::string& token : tokens) add(token);
  return list.dump();
}

}  // namespace megalith::testing
