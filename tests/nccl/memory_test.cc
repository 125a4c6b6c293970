// How much of the device's memory a rank of an NCCL run takes: as much as the same run over Gloo, and as planned.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/nccl/memory_run.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

using nlohmann::json;

// The allocator's peak on the fullest rank.
double measured_peak(Transport transport) {
  const TempFolder folder;
  run_job(memory_command(transport, folder / "out"), 2, transport);
  double peak = 0;
  std::ifstream metrics(folder / "out" / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);)
    if (const json parsed = json::parse(line); parsed.contains("memory"))
      peak = std::max(peak, parsed.at("memory").get<double>());
  return peak;
}

double planned_peak() {
  Words words{MEGALITH_PROGRAM, "preview", "memory", "--model", memory_model().string(),
              "--world-size",   "2",       "--gpu",  "h200",    "--json"};
  for (std::string& word : memory_layout()) words.push_back(std::move(word));
  const ProcessResult result = run_process(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out).at("peak");
}

TEST(Memory, OverNcclIsThatOverGlooAndAsPlanned) {
  if (chosen_transport() != Transport::kNccl) GTEST_SKIP() << "needs NCCL and a GPU, whose allocator tells its peak";
  constexpr double kShare = 0.02;
  const double nccl = measured_peak(Transport::kNccl), gloo = measured_peak(Transport::kGlooOnGpu);
  const double planned = planned_peak();
  fmt::print("nccl-memory tp2_sp nccl {:.1f} MiB, gloo {:.1f} MiB, planned {:.1f} MiB\n", nccl / 1048576,
             gloo / 1048576, planned / 1048576);
  EXPECT_GT(gloo, 0);
  EXPECT_NEAR(nccl, gloo, kShare * gloo);
  EXPECT_NEAR(nccl, planned, kShare * planned);
}

// On any machine: the plan of this run is a number of bytes that it may have.
TEST(Memory, IsPlanned) {
  EXPECT_GT(planned_peak(), 1e9);
  EXPECT_LT(planned_peak(), 20e9);
}

}  // namespace
}  // namespace megalith::testing
