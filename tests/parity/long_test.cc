// Every point. With MEGALITH_PARITY_TABLE=FILE the largest differences of the lattice by layout are written there, in
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

int points_at_once() { return static_cast<int>(std::max(2U, std::thread::hardware_concurrency() / 2)); }

TEST(ParityLattice, EveryPointEqualsThePlainModel) {
  const std::vector<ParityPoint> points = lattice_points();
  ParityReport report;
  report.run(points, points_at_once());
  fmt::print("{}", report.summary(points.size()));
  if (const char* file = std::getenv("MEGALITH_PARITY_TABLE")) std::ofstream(file) << report.csv();
}

TEST(ParityBorders, EveryPointEqualsThePlainModel) {
  const std::vector<ParityPoint> points = border_points();
  ParityReport report;
  report.run(points, points_at_once());
  fmt::print("{}", report.summary(points.size()));
}

TEST(ParityVocabulary, EveryPointEqualsThePlainModel) {
  const std::vector<ParityPoint> points = vocabulary_points();
  ParityReport report;
  report.run(points, points_at_once());
  fmt::print("{}", report.summary(points.size()));
}

}  // namespace
}  // namespace megalith::testing
