// The losses of a run, as its metrics.jsonl has them.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace megalith::testing {

// Returns the lines that have a loss.
inline std::vector<nlohmann::json> logged_lines(const std::filesystem::path& folder) {
  std::vector<nlohmann::json> all;
  std::ifstream file(folder / "metrics.jsonl");
  for (std::string line; std::getline(file, line);)
    if (const auto parsed = nlohmann::json::parse(line); parsed.contains("loss")) all.push_back(parsed);
  return all;
}

// Returns a number of each of these lines.
inline std::vector<double> logged_numbers(const std::filesystem::path& folder, const std::string& key) {
  std::vector<double> all;
  for (const nlohmann::json& line : logged_lines(folder)) all.push_back(line.at(key).get<double>());
  return all;
}

inline std::vector<double> losses_in(const std::filesystem::path& folder) { return logged_numbers(folder, "loss"); }

// Prints the first and the last loss, and returns by how much the loss has fallen.
inline double report_losses(const std::filesystem::path& folder, const std::string& name) {
  const std::vector<double> losses = losses_in(folder);
  EXPECT_GE(losses.size(), 2U) << name;
  if (losses.empty()) return 0;
  std::cout << name << ": first loss " << losses.front() << ", last " << losses.back() << "\n";
  return losses.front() - losses.back();
}

}  // namespace megalith::testing
