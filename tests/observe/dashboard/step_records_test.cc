#include "megalith/observe/dashboard/step_records.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megalith/observe/dashboard/dashboard.h"
#include "tests/observe/dashboard/run_folder.h"

namespace megalith::observe {
namespace {

using nlohmann::json;

std::string sample_line(int64_t step) {
  return fmt::format(R"({{"step":{},"time":1,"generated":[{{"prompt":"a","text":"<b>","ended":true}}],"trained":[]}})",
                     step) +
         "\n";
}

// One value of 1.125 (the middle of bin 0) as weight, and of `bin` as gradient.
std::string histogram_line(int64_t step, int bin) {
  return fmt::format(
             R"({{"step":{},"time":1,"weights":[{{"part":"head","zeros":0,"non_finite":0,"negative":[],"positive":[0,1]}}],)"
             R"("gradients":[{{"part":"head","zeros":0,"non_finite":0,"negative":[{},2],"positive":[]}}]}})",
             step, bin) +
         "\n";
}

TEST(StepRecords, SamplesGrowAndStartAnew) {
  const RunFolder folder;
  SamplesReader reader(folder.path());
  EXPECT_FALSE(reader.update());
  EXPECT_EQ(reader.steps_json(), "[]");
  folder.write("samples.jsonl", sample_line(10) + "broken\n{\"step\":11}\n" + sample_line(20));
  EXPECT_TRUE(reader.update());
  EXPECT_EQ(reader.steps_json(), "[10,20]");
  EXPECT_EQ(reader.malformed(), 2);
  EXPECT_EQ(json::parse(*reader.json(1)).at("generated").at(0).at("text"), "<b>");
  EXPECT_FALSE(reader.json(2));
  folder.append("samples.jsonl", sample_line(30));
  EXPECT_TRUE(reader.update());
  EXPECT_EQ(reader.steps_json(), "[10,20,30]");
  folder.write("samples.jsonl", sample_line(5));
  EXPECT_TRUE(reader.update());
  EXPECT_EQ(reader.steps_json(), "[5]");
  EXPECT_EQ(reader.malformed(), 0);
}

TEST(StepRecords, ManyAreThinnedOut) {
  ThinnedRecords<int64_t> records;
  for (int64_t step = 1; step <= 1000; ++step) {
    records.add(step, 10);
    EXPECT_EQ(records.all().back(), step) << "the newest stays";
    EXPECT_LE(records.all().size(), ThinnedRecords<int64_t>::kMostRecords);
  }
  EXPECT_GE(records.all().size(), ThinnedRecords<int64_t>::kMostRecords / 2);
  EXPECT_LT(records.all().front(), 20);
  ThinnedRecords<int64_t> large;
  for (int64_t step = 1; step <= 9; ++step) large.add(step, ThinnedRecords<int64_t>::kMostBytes / 4);
  EXPECT_LE(large.all().size(), 4U);
  EXPECT_EQ(large.all().back(), 9);
}

TEST(StepRecords, HistogramsAreReadByRow) {
  const RunFolder folder;
  folder.write("histograms.jsonl", histogram_line(10, 4) + histogram_line(20, -4) +
                                       R"({"step":30,"weights":[{"part":"head","positive":"x"}],"gradients":[]})"
                                       "\n");
  HistogramsReader reader(folder.path());
  EXPECT_TRUE(reader.update());
  EXPECT_EQ(reader.malformed(), 1);
  EXPECT_EQ(reader.rows(), 2U);
  const json summary = json::parse(reader.summary_json());
  EXPECT_EQ(summary.at("steps"), json::parse("[10,20]"));
  EXPECT_EQ(summary.at("rows").at(0), json::parse(R"({"kind":"weights","part":"head","size":[1.125,1.125]})"));
  EXPECT_EQ(summary.at("rows").at(1), json::parse(R"({"kind":"gradients","part":"head","size":[2.25,0.5625]})"));
  const json row = json::parse(*reader.row_json(1));
  EXPECT_EQ(row.at("histograms").at(1).at("negative"), json::parse("[-4,2]"));
  EXPECT_FALSE(reader.row_json(2));
}

TEST(StepRecords, AreServedByTheDashboardAndItsReport) {
  const RunFolder folder;
  folder.write("run/metrics.jsonl", "{\"step\":1,\"loss\":1}\n");
  folder.write("run/samples.jsonl", sample_line(10) + "broken\n");
  folder.write("run/histograms.jsonl", histogram_line(10, 4));
  const std::vector<std::filesystem::path> folders{folder / "run"};
  Dashboard dashboard(folders);
  const auto answer = [&](const char* path) { return dashboard.answer(path); };
  const json run = json::parse(answer("/api/runs/0").body);
  EXPECT_EQ(run.at("samples"), json::parse("[10]"));
  EXPECT_EQ(run.at("histograms"), json::parse("[10]"));
  EXPECT_EQ(run.at("malformed_records"), 1);
  EXPECT_EQ(json::parse(answer("/api/runs/0/samples/0").body).at("step"), 10);
  EXPECT_EQ(json::parse(answer("/api/runs/0/histograms").body).at("rows").size(), 2U);
  EXPECT_EQ(json::parse(answer("/api/runs/0/histograms/1").body).at("kind"), "gradients");
  for (const char* path : {"/api/runs/0/samples", "/api/runs/0/samples/1", "/api/runs/0/samples/x",
                           "/api/runs/0/histograms/2", "/api/runs/1/samples/0", "/api/runs/0/other/0"})
    EXPECT_EQ(answer(path).status, 404) << path;
  const std::string report = dashboard.report();
  EXPECT_NE(report.find("\"samples\":[[{\"step\":10"), std::string::npos);
  EXPECT_NE(report.find("\"histograms\":[{\"summary\":{\"steps\":[10]"), std::string::npos);
  EXPECT_EQ(report.find("\"text\":\"<b>"), std::string::npos) << "text of a run is not markup";
}

}  // namespace
}  // namespace megalith::observe
