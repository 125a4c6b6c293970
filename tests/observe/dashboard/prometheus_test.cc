#include "megalith/observe/dashboard/prometheus.h"

#include <gtest/gtest.h>

#include <regex>

#include "megalith/observe/dashboard/dashboard.h"
#include "tests/observe/dashboard/run_folder.h"
#include "tests/support/expect.h"

namespace megalith::observe {
namespace {

using testing::expect_contains;

TEST(Prometheus, TellsTheNewestNumbersOfEachRun) {
  const RunFolder folder;
  folder.write("a/metrics.jsonl", "{\"step\":1,\"loss\":3.5}\n{\"step\":2,\"loss\":2.25,\"eval/x y\":1}\n");
  folder.write("a/live.json",
               R"({"step":2,"ranks":[{"wait_seconds":0.5,"gpu":{"temperature":61}},{"wait_seconds":0.25}]})");
  folder.write("b/metrics.jsonl", "{\"step\":7,\"loss\":null,\"eval_x_y\":1,\"eval/x/y\":2}\n");
  folder.write("b/events.jsonl", "{\"time\":1,\"step\":7,\"event\":\"end\"}\n");
  const std::vector<std::filesystem::path> folders{folder.path()};
  Dashboard dashboard(folders);
  const DashboardAnswer answer = dashboard.answer("/metrics");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.type, "text/plain; version=0.0.4; charset=utf-8");
  for (const char* line :
       {"# TYPE megalith_loss gauge\nmegalith_loss{run=\"a\"} 2.25\nmegalith_loss{run=\"b\"} NaN\n",
        "# TYPE megalith_step gauge\nmegalith_step{run=\"a\"} 2\nmegalith_step{run=\"b\"} 7\n",
        "# TYPE megalith_running gauge\nmegalith_running{run=\"a\"} 1\nmegalith_running{run=\"b\"} 0\n",
        "megalith_rank_wait_seconds{run=\"a\",rank=\"0\"} 0.5\nmegalith_rank_wait_seconds{run=\"a\",rank=\"1\"} 0.25\n",
        "megalith_rank_gpu_temperature{run=\"a\",rank=\"0\"} 61\n",
        "megalith_eval_x_y{run=\"a\"} 1\nmegalith_eval_x_y{run=\"b\"} 1\n"})
    expect_contains(answer.body, line);
}

TEST(Prometheus, EveryLineIsOfTheFormat) {
  const RunFolder folder;
  const std::string name = "we\"ird\\\nname{}\xff";
  std::filesystem::create_directory(folder / name);
  std::ofstream(folder / name / "metrics.jsonl") << "{\"step\":1,\"ü {}\\n\":1e300,\"loss\":-0.5}\n";
  const std::vector<std::filesystem::path> folders{folder / name};
  Dashboard dashboard(folders);
  const std::string text = dashboard.answer("/metrics").body;
  const std::regex type(R"(# TYPE [a-zA-Z_][a-zA-Z0-9_]* gauge)");
  const std::regex sample(R"re([a-zA-Z_][a-zA-Z0-9_]*\{run="([^"\\]|\\["\\n])*"\} (NaN|[+-]Inf|-?[0-9.e+-]+))re");
  std::istringstream lines(text);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count)
    EXPECT_TRUE(std::regex_match(line, type) || std::regex_match(line, sample)) << line;
  EXPECT_GE(count, 8);
}

}  // namespace
}  // namespace megalith::observe
