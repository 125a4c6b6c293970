// Reference data: tests/data/golden, or the folder that MEGALITH_GOLDEN_DIR names.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace megalith::testing {

// Returns the folder of golden files.
std::filesystem::path golden_dir();
// The whole file; the test fails with the path when it cannot be read.
std::string golden_text(const std::string& relative_path);
// The parsed file, e.g. golden_json("parallel/groups.json"); the test fails with the path when it cannot be read.
nlohmann::json golden_json(const std::string& relative_path);
// The lines of a text file, without empty ones.
std::vector<std::string> golden_lines(const std::string& relative_path);

}  // namespace megalith::testing
