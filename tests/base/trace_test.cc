#include "megalith/base/trace.h"

#include <gtest/gtest.h>

#include <thread>

namespace megalith {
namespace {

// A clock that moves when it is told to.
struct Hands {
  int64_t now = 0;
  TraceRecorder::Clock clock() {
    return [this] { return now; };
  }
};

TEST(Trace, RecordsNothingUnlessAsked) {
  int reads = 0;
  TraceRecorder trace([&] { return ++reads; });
  { const auto span = trace.span({.name = "forward", .level = 0}); }
  trace.add({{.name = "backward", .level = 0}, 1, 2});
  EXPECT_EQ(reads, 0);
  EXPECT_TRUE(trace.take_spans().empty());
  EXPECT_TRUE(trace.take_totals().empty());
}

TEST(Trace, Timeline) {
  Hands hands;
  TraceRecorder trace(hands.clock());
  trace.start_timeline();
  {
    const auto outer = trace.span({"step"});
    hands.now = 10;
    {
      const auto inner = trace.span({.name = "send", .lane = TraceLane::kCommunication, .microbatch = 3, .chunk = 1});
      hands.now = 25;
    }
    hands.now = 30;
  }
  trace.stop_timeline();
  { const auto late = trace.span({"late"}); }
  const auto spans = trace.take_spans();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_STREQ(spans[0].label.name, "send");
  EXPECT_EQ(spans[0].label.microbatch, 3);
  EXPECT_EQ(spans[0].label.chunk, 1);
  EXPECT_EQ(spans[0].begin_ns, 10);
  EXPECT_EQ(spans[0].end_ns, 25);
  EXPECT_EQ(spans[1].begin_ns, 0);
  EXPECT_EQ(spans[1].end_ns, 30);
  EXPECT_TRUE(trace.take_spans().empty());
  EXPECT_TRUE(trace.take_totals().empty()) << "totals are switched on apart";
}

TEST(Trace, TotalsOfTheAskedLevel) {
  TraceRecorder trace;
  trace.set_timing_level(1);
  trace.add({{.name = "optimizer", .level = 1}, 0, 2'000'000'000});
  trace.add({{.name = "forward", .level = 0}, 0, 1'000'000'000});
  trace.add({{.name = "optimizer", .level = 1}, 5, 500'000'005});
  trace.add({{.name = "fine", .level = 2}, 0, 1});
  trace.add({{"timeline only"}, 0, 1});
  const auto totals = trace.take_totals();
  ASSERT_EQ(totals.size(), 2U);
  EXPECT_EQ(totals[0].name, "optimizer");
  EXPECT_DOUBLE_EQ(totals[0].seconds, 2.5);
  EXPECT_EQ(totals[0].count, 2);
  EXPECT_EQ(totals[1].name, "forward");
  EXPECT_TRUE(trace.take_totals().empty());
  EXPECT_TRUE(trace.take_spans().empty());
}

TEST(Trace, KeepsSoManySpansAndCountsTheRest) {
  TraceRecorder trace;
  trace.start_timeline(2);
  for (int i = 0; i < 5; ++i) trace.add({{"a"}, i, i + 1});
  EXPECT_EQ(trace.take_spans().size(), 2U);
  EXPECT_EQ(trace.dropped_spans(), 3U);
}

TEST(Trace, ThreadsMayRecordTogether) {
  TraceRecorder trace;
  trace.start_timeline();
  trace.set_timing_level(0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) const auto span = trace.span({.name = "work", .level = 0});
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(trace.take_spans().size(), 400U);
  EXPECT_EQ(trace.take_totals().at(0).count, 400);
}

TEST(Trace, TheRealClockMovesForward) {
  const TraceRecorder trace;
  const int64_t before = trace.now_ns();
  EXPECT_LE(before, trace.now_ns());
}

}  // namespace
}  // namespace megalith
