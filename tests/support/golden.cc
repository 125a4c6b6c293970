#include "tests/support/golden.h"

#include <fstream>

#include "megalith/base/env.h"
#include "megalith/base/error.h"

namespace megalith::testing {

std::filesystem::path golden_dir() {
  if (const auto dir = env_string("MEGALITH_GOLDEN_DIR")) return *dir;
  return std::filesystem::path(MEGALITH_SOURCE_DIR) / "tests/data/golden";
}

std::string golden_text(const std::string& relative_path) {
  const auto path = golden_dir() / relative_path;
  std::ifstream file(path, std::ios::binary);
  check<DataError>(file.good(), "golden file {} cannot be read", path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

nlohmann::json golden_json(const std::string& relative_path) {
  return nlohmann::json::parse(golden_text(relative_path));
}

std::vector<std::string> golden_lines(const std::string& relative_path) {
  const auto path = golden_dir() / relative_path;
  std::ifstream file(path);
  check<DataError>(file.good(), "golden file {} cannot be read", path.string());
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);)
    if (!line.empty()) lines.push_back(line);
  return lines;
}

}  // namespace megalith::testing
