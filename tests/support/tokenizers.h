// The real tokenizers of tests/data/tokenizers.tar.xz, as model folders, and folders that a test writes itself.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace megalith::testing {

// The folder of one of them: gpt2, qwen2_5, qwen3, deepseek_v3. It may not exist for other names.
std::filesystem::path tokenizer_folder(const std::string& name);
// The names of all.
std::vector<std::string> tokenizer_names();

// A vocabulary file of Megatron's TikTokenizer: the 256 bytes, then these tokens.
std::string tiktoken_vocabulary(const std::vector<std::string>& tokens);

// A new folder with these files (name to content), removed with this object.
class TemporaryFolder {
 public:
  using Files = std::vector<std::pair<std::string, std::string>>;
  explicit TemporaryFolder(const Files& files = {});
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, const std::string& content) const;

 private:
  std::filesystem::path path_;
};

}  // namespace megalith::testing
