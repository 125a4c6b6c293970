// Every point of the lattice. With MEGALITH_PARITY_TABLE=FILE the table of docs/parity.md is written there.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/parity/parity_run.h"

namespace megalith::testing {
namespace {

TEST(ParityLattice, EveryPointEqualsThePlainModel) {
  ParityReport report;
  report.run(all_points(), static_cast<int>(std::max(2U, std::thread::hardware_concurrency() / 2)));
  const std::string table = report.table();
  fmt::print("{}", table);
  if (const char* file = std::getenv("MEGALITH_PARITY_TABLE")) std::ofstream(file) << table;
}

}  // namespace
}  // namespace megalith::testing
