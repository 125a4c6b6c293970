#include "megalith/observe/metrics_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/observe/some_run.h"
#include "tests/support/expect.h"

namespace megalith::observe {
namespace {

using testing::expect_error;
using testing::TempFolder;

// The file without the end of its lines, from the time on, which differs each time.
std::string without_times(const std::filesystem::path& path) {
  return std::regex_replace(text_of_file(path), std::regex(R"re(,"time":[0-9.]+,"samples":\d+,"tokens":\d+)re"), "");
}

TEST(MetricsFile, LinesCarryTheOtherAxes) {
  const TempFolder folder;
  SomeRun run;
  MetricsFileCallback callback(folder / "out");
  run.begin(callback);
  run.state.global_step = 10;
  run.state.num_input_tokens_seen = 20480;
  train::TrainerEvent event{run.settings, run.state, run.control, {{"loss", 2}}, {}, 0, {}, 80};
  callback.on_log(event);
  EXPECT_EQ(event.metrics.size(), 1U) << "only the file gets them";
  const auto line = nlohmann::json::parse(text_of_file(folder / "out" / "metrics.jsonl"));
  EXPECT_EQ(line.at("samples"), 80);
  EXPECT_EQ(line.at("tokens"), 20480);
  EXPECT_GT(line.at("time").get<double>(), 1.7e9);
  EXPECT_TRUE(line.at("samples").is_number_integer());
}

TEST(MetricsFile, WritesOneObjectPerLineAtOnce) {
  const TempFolder folder;
  SomeRun run;
  MetricsFileCallback callback(folder / "out");
  run.begin(callback);
  run.state.global_step = 10;
  run.state.epoch = 0.5;
  run.log(callback, {{"loss", 0.1 + 0.2}, {"learning_rate", 1e-4}, {"skipped_iter", 0}, {"grad_norm", std::nan("")}});
  const std::string first =
      R"({"step":10,"epoch":0.5,"loss":0.30000000000000004,"learning_rate":0.0001,"skipped_iter":0,"grad_norm":null})"
      "\n";
  EXPECT_EQ(without_times(folder / "out" / "metrics.jsonl"), first);
  run.log(callback, {{"eval_loss", 2.25}, {"epoch", 0.5}, {"step", 10}});
  EXPECT_EQ(without_times(folder / "out" / "metrics.jsonl"), first + R"({"step":10,"epoch":0.5,"eval_loss":2.25})"
                                                                     "\n");
}

TEST(MetricsFile, OtherRanksWriteNothing) {
  const TempFolder folder;
  SomeRun run;
  run.state.is_world_process_zero = false;
  MetricsFileCallback callback(folder / "out");
  run.begin(callback);
  run.log(callback, {{"loss", 1}});
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(MetricsFile, AResumedRunDropsWhatItDoesAgain) {
  const TempFolder folder;
  const auto path = folder / "metrics.jsonl";
  {
    MetricsFile file(path, 0);
    for (const int64_t step : {1, 2, 2, 3, 4}) file.append(step, {}, {{"loss", static_cast<double>(step)}});
  }
  io::write_text_file(folder / "cut.jsonl",
                      text_of_file(path) + R"({"step":2,"lo)");  // a crash in the middle of a line
  for (const char* name : {"metrics.jsonl", "cut.jsonl"}) {
    MetricsFile file(folder / name, 2);
    file.append(3, {}, {{"loss", 7}});
    EXPECT_EQ(text_of_file(folder / name), R"({"step":1,"loss":1.0})"
                                           "\n"
                                           R"({"step":2,"loss":2.0})"
                                           "\n"
                                           R"({"step":2,"loss":2.0})"
                                           "\n"
                                           R"({"step":3,"loss":7.0})"
                                           "\n")
        << name;
  }
  MetricsFile anew(path, 0);
  EXPECT_EQ(text_of_file(path), "");
}

TEST(MetricsFile, RefusesToCutWhatIsNotItsOwn) {
  const TempFolder folder;
  const auto path = folder / "metrics.jsonl";
  io::write_text_file(path, "{\"step\":1}\n{\"name\":\"x\"}\n");
  expect_error<DataError>([&] { MetricsFile(path, 1); }, {"metrics.jsonl, line 2", "step", "output_dir"});
  io::write_text_file(path, "hello\n");
  expect_error<DataError>([&] { MetricsFile(path, 1); }, {"metrics.jsonl, line 1"});
  EXPECT_EQ(text_of_file(path), "hello\n");
}

}  // namespace
}  // namespace megalith::observe
