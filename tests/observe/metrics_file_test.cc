#include "megalith/observe/metrics_file.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/observe/some_run.h"
#include "tests/support/expect.h"

namespace megalith::observe {
namespace {

using testing::expect_error;
using testing::TempFolder;

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
  EXPECT_EQ(text_of_file(folder / "out" / "metrics.jsonl"), first);
  run.log(callback, {{"eval_loss", 2.25}, {"epoch", 0.5}, {"step", 10}});
  EXPECT_EQ(text_of_file(folder / "out" / "metrics.jsonl"), first + R"({"step":10,"epoch":0.5,"eval_loss":2.25})"
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
