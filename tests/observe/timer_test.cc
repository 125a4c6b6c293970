#include <gtest/gtest.h>

#include "megalith/observe/trace_callback.h"
#include "tests/observe/some_run.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"

namespace megalith::observe {
namespace {

using testing::expect_error;

const std::vector<PhaseTimes> kPhases{{"forward-backward", {10, 12.345}}, {"nobody", {0, 0}}, {"optimizer", {0, 1.5}}};

TEST(TimerText, IsWrittenAsByMegatron) {
  EXPECT_EQ(timer_text("minmax", kPhases),
            "(min, max) time across ranks (ms):\n"
            "    forward-backward ...............................: (10.00, 12.35)\n"
            "    optimizer ......................................: (1.50, 1.50)");
  EXPECT_EQ(timer_text("max", kPhases),
            "max time across ranks (ms):\n"
            "    forward-backward ...............................: 12.35\n"
            "    optimizer ......................................: 1.50");
  EXPECT_EQ(timer_text("all", kPhases),
            "times across ranks (ms):\n"
            "  forward-backward:\n"
            "     rank  0: 10.00\n"
            "     rank  1: 12.35\n"
            "  optimizer:\n"
            "     rank  1: 1.50");
  EXPECT_EQ(timer_text("all", {}), "");
  expect_error<ConfigError>([] { timer_text("mean", {}); }, {"timing_log_option", "mean", "minmax, max or all"});
}

TEST(Timers, OfAllRanksAreDividedByTheSteps) {
  testing::run_ranks(2, [](const testing::Rank& r) {
    TraceRecorder recorder;
    SomeRun run;
    run.state.is_world_process_zero = r.rank == 0;
    run.state.global_step = 10;
    std::string said;
    TimerCallback callback(r.world.world(), recorder, {.log_level = 1, .log_option = "all"},
                           [&](const std::string& text) { said += text; });
    run.begin(callback);
    for (int step = 0; step < 2; ++step) {
      recorder.add({{.name = "step", .level = 0}, 0, (r.rank + 1) * 4'000'000});
      recorder.add({{.name = "fine", .level = 2}, 0, 4'000'000});
      if (r.rank == 1) recorder.add({{.name = "last stage", .level = 1}, 0, 500'000});
      ++run.state.global_step;
    }
    run.log(callback, {{"loss", 1}});
    EXPECT_EQ(said, r.rank > 0 ? ""
                               : "times across ranks (ms):\n  step:\n     rank  0: 4.00\n     rank  1: 8.00\n"
                                 "  last stage:\n     rank  1: 0.50");
    said.clear();
    run.log(callback, {{"eval_loss", 1}});
    ++run.state.global_step;
    run.log(callback, {{"loss", 1}});
    EXPECT_EQ(said, "") << "nothing was timed since";
  });
}

TEST(TraceSteps, Parse) {
  EXPECT_EQ(TraceSteps::parse("10-12"), (TraceSteps{10, 12}));
  EXPECT_EQ(TraceSteps::parse("3"), (TraceSteps{3, 3}));
  for (const char* bad : {"", "0-1", "5-4", "1-2-3", "a", "-3", "3-"})
    expect_error<ConfigError>([&] { TraceSteps::parse(bad); }, {"trace", "10-12", std::string("\"") + bad + "\""});
}

}  // namespace
}  // namespace megalith::observe
