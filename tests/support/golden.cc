#include "tests/support/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <sstream>

#include "megalith/base/env.h"
#include "megalith/base/error.h"

namespace megalith::testing {

namespace fs = std::filesystem;

namespace {

bool in_own_folder() { return !env_string("MEGALITH_GOLDEN_DIR"); }

}  // namespace

fs::path golden_dir() {
  if (const auto dir = env_string("MEGALITH_GOLDEN_DIR")) return *dir;
  return fs::path(MEGALITH_SOURCE_DIR) / "tests/data/golden";
}

// GTEST_SKIP() returns from the function that it stands in. Here the test is marked as skipped and left by gtest's own
// exception for results that have been reported already.
void skip_without_golden(const std::string& missing) {
  const std::string reason = golden_dir().string() + " holds no " + missing;
  check<DataError>(!in_own_folder(), "{}", reason);
  const ::testing::TestPartResult result(::testing::TestPartResult::kSkip, __FILE__, __LINE__, reason.c_str());
  ::testing::internal::AssertHelper(result.type(), __FILE__, __LINE__, reason.c_str()) = ::testing::Message();
  throw ::testing::AssertionException(result);
}

void leave_out(const std::string& part, const std::string& why) {
  std::cout << "left out: " << part << ": " << why << "\n";
  if (in_own_folder()) ADD_FAILURE() << part << " does not fit the repository's own golden files: " << why;
}

std::string golden_text(const std::string& relative_path) {
  std::ifstream file(golden_dir() / relative_path, std::ios::binary);
  if (!file.good()) skip_without_golden(relative_path);
  return {std::istreambuf_iterator<char>(file), {}};
}

nlohmann::json golden_json(const std::string& relative_path) {
  return nlohmann::json::parse(golden_text(relative_path));
}

std::vector<std::string> golden_lines(const std::string& relative_path) {
  std::istringstream text(golden_text(relative_path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);)
    if (!line.empty()) lines.push_back(line);
  return lines;
}

std::vector<fs::path> golden_files(const std::string& relative_folder, const std::string& extension) {
  std::vector<fs::path> files;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(golden_dir() / relative_folder, missing))
    if (entry.path().extension() == extension) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

bool has_golden(const nlohmann::json& object, const std::string& member) {
  return object.is_object() && object.contains(member) && !object.at(member).is_null();
}

const nlohmann::json& golden_member(const nlohmann::json& object, const std::string& member) {
  if (!has_golden(object, member)) skip_without_golden("\"" + member + "\" in this file");
  return object.at(member);
}

double golden_number(const nlohmann::json& object, const std::string& member) {
  return has_golden(object, member) ? object.at(member).get<double>() : 0;
}

std::vector<std::string> golden_or_none(std::vector<std::string> names) {
  if (names.empty()) names.emplace_back(kNoGolden);
  return names;
}

}  // namespace megalith::testing
