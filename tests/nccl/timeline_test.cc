// The timeline of several ranks: rows for each communicator, in device time over NCCL.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "megalith/io/file_io.h"
#include "tests/nccl/rank_case.h"
#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

using nlohmann::json;

class RanksInTime : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto chosen = chosen_transport();
    if (!chosen) GTEST_SKIP() << "no GPU; MEGALITH_NCCL_TESTS=gloo_cpu runs it on the CPU";
    transport_ = *chosen;
  }

  // Trains the case with more words, and returns trace.json.
  json trace_of(const RankCase& how, const Words& more) {
    Words words = case_command(how, transport_, folder_ / how.name);
    words.insert(words.end(), more.begin(), more.end());
    said_ = run_job(words, how.ranks(), transport_).errors();
    return json::parse(io::read_text_file(folder_ / how.name / "trace.json", 1 << 28));
  }

  Transport transport_ = Transport::kGlooOnCpu;
  std::string said_;
  TempFolder folder_;
};

// Names of the rows with spans, for all ranks.
std::set<std::string> rows_in_use(const json& trace) {
  std::map<std::pair<int, int>, std::string> names;
  for (const json& event : trace.at("traceEvents"))
    if (event.at("ph") == "M" && event.at("name") == "thread_name")
      names[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
  std::set<std::string> rows;
  for (const json& event : trace.at("traceEvents"))
    if (event.at("ph") == "X") rows.insert(names.at({event.at("pid"), event.at("tid")}));
  return rows;
}

TEST_F(RanksInTime, CommunicatorsHaveRowsOfTheirOwn) {
  const RankCase how{.name = "tp2_timeline", .tp = 2};
  const json trace = trace_of(how, {"--trace=2-3", "--timing", "--logging_steps=1"});
  const std::set<std::string> rows = rows_in_use(trace);
  EXPECT_TRUE(rows.contains("compute"));
  EXPECT_TRUE(rows.contains("communication tp")) << trace.dump().substr(0, 2000);
  expect_contains(said_, "forward-backward ...");
  if (transport_ != Transport::kNccl) return;
  // On the device: the rank's stream stands still for operations, which is a timer, too.
  expect_contains(said_, "communication-wait ...");
  std::set<int> waiting;  // ranks
  for (const json& event : trace.at("traceEvents"))
    if (event.at("name") == "communication-wait") waiting.insert(event.at("pid").get<int>());
  EXPECT_EQ(waiting.size(), 2U);
  // Operations of one communicator never overlap: there is one row for them.
  EXPECT_FALSE(rows.contains("communication tp (2)"));
}

// The straggler report knows how long ranks wait: over NCCL, how long their streams stand still.
TEST_F(RanksInTime, WaitsAreKnownToTheStragglerReport) {
  const RankCase how{.name = "tp2_waits", .tp = 2};
  trace_of(how, {"--trace=2-3", "--log_straggler", "--logging_steps=1"});
  expect_contains(said_, "s wait)");
  const json live = json::parse(io::read_text_file(folder_ / how.name / "live.json", 1 << 20));
  double waited = 0;
  for (const json& rank : live.at("ranks")) waited += rank.at("wait_seconds").get<double>();
  EXPECT_GT(waited, 0);
}

}  // namespace
}  // namespace megalith::testing
