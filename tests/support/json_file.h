// A JSON file that a test looks into.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace megalith::testing {

inline nlohmann::json json_file(const std::filesystem::path& path) {
  return nlohmann::json::parse(std::ifstream(path));
}

}  // namespace megalith::testing
