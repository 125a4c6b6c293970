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

inline std::vector<double> losses_in(const std::filesystem::path& folder) {
  std::vector<double> all;
  std::ifstream file(folder / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto values = nlohmann::json::parse(line);
    if (values.contains("loss")) all.push_back(values.at("loss").get<double>());
  }
  return all;
}

// Prints the first and the last loss, and returns by how much the loss has fallen.
inline double report_losses(const std::filesystem::path& folder, const std::string& name) {
  const std::vector<double> losses = losses_in(folder);
  EXPECT_GE(losses.size(), 2U) << name;
  if (losses.empty()) return 0;
  std::cout << name << ": first loss " << losses.front() << ", last " << losses.back() << "\n";
  return losses.front() - losses.back();
}

}  // namespace megalith::testing
