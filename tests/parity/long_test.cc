// Every point of the lattice. With MEGALITH_PARITY_TABLE=FILE the largest differences by layout are written there, in
// the format of docs/parity.csv.
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
  fmt::print("{}", report.summary());
  if (const char* file = std::getenv("MEGALITH_PARITY_TABLE")) std::ofstream(file) << report.csv();
}

}  // namespace
}  // namespace megalith::testing
