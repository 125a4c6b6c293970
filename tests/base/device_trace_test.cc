// Spans of a device whose host is far ahead: they become known late, in any order, and nobody waits for them but the
// timeline at its end.
#include <gtest/gtest.h>

#include "megalith/base/trace.h"
#include "tests/support/fake_device_clock.h"

namespace megalith {
namespace {

using testing::FakeDeviceClock;

class DeviceTrace : public ::testing::Test {
 protected:
  DeviceTrace() { trace.set_device_clock(device); }

  int64_t host_now = 1000;  // the host's clock: far away from the device's, so that a mix-up shows
  TraceRecorder trace{[this] { return host_now; }};
  const std::shared_ptr<FakeDeviceClock> device = std::make_shared<FakeDeviceClock>();
};

TEST_F(DeviceTrace, PlacesNoMarksUnlessAsked) {
  { const auto span = trace.span({.name = "forward", .level = 0}); }
  EXPECT_TRUE(device->placed.empty());
}

TEST_F(DeviceTrace, TotalsAreOfTheDeviceAndDoNotWaitForIt) {
  trace.set_timing_level(1);
  { const auto span = trace.span({.name = "forward", .level = 1}); }
  { const auto span = trace.span({.name = "optimizer", .level = 1}); }
  EXPECT_TRUE(trace.take_totals().empty()) << "the device has not begun";
  device->pass(0, 5'000'000'000);
  device->pass(1, 7'000'000'000);
  device->pass(2, 7'000'000'000);
  auto totals = trace.take_totals();
  ASSERT_EQ(totals.size(), 1U);
  EXPECT_EQ(totals[0].name, "forward");
  EXPECT_DOUBLE_EQ(totals[0].seconds, 2);
  EXPECT_TRUE(trace.take_totals().empty()) << "taken once";
  device->pass(3, 7'500'000'000);
  totals = trace.take_totals();
  ASSERT_EQ(totals.size(), 1U);
  EXPECT_EQ(totals[0].name, "optimizer");
  EXPECT_DOUBLE_EQ(totals[0].seconds, 0.5);
  EXPECT_EQ(totals[0].count, 1);
  EXPECT_EQ(device->waits, 0);
}

TEST_F(DeviceTrace, StreamsMayFinishInAnyOrder) {
  trace.set_timing_level(0);
  for (const char* name : {"first", "second", "third"}) {
    const auto span = trace.span({.name = name, .level = 0});
  }
  device->pass(4, 10);
  device->pass(5, 30);
  const auto early = trace.take_totals();
  ASSERT_EQ(early.size(), 1U);
  EXPECT_EQ(early[0].name, "third");
  for (size_t mark = 0; mark < 4; ++mark) device->pass(mark, 40);
  const auto late = trace.take_totals();
  ASSERT_EQ(late.size(), 2U);
  EXPECT_EQ(late[0].name, "first");
  EXPECT_EQ(late[1].name, "second");
}

TEST_F(DeviceTrace, TheTimelineWaitsOnceAtItsEnd) {
  trace.start_timeline();
  EXPECT_EQ(device->aligned, 1);
  { const auto span = trace.span({"forward"}); }
  { const auto span = trace.span({"backward"}); }
  trace.stop_timeline();
  device->pass(0, 10);
  device->pass(1, 20);
  device->now = 90;  // the device's time when the host has waited for it
  const auto spans = trace.take_spans();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].begin_ns, 10);
  EXPECT_EQ(spans[0].end_ns, 20);
  EXPECT_STREQ(spans[1].label.name, "backward");
  EXPECT_EQ(spans[1].end_ns, 90);
  EXPECT_GT(device->waits, 0);
  EXPECT_EQ(trace.dropped_spans(), 0U);
}

TEST_F(DeviceTrace, WorkOfTheHostIsTimedByTheHost) {
  trace.start_timeline();
  {
    const auto span = trace.span({.name = "save-checkpoint", .lane = TraceLane::kHost});
    host_now = 1300;
  }
  trace.add({{.name = "elsewhere"}, 1, 2});
  EXPECT_TRUE(device->placed.empty());
  const auto spans = trace.take_spans();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].end_ns - spans[0].begin_ns, 300);
}

TEST_F(DeviceTrace, AnOperationBeginsWhenItsStreamIsFree) {
  trace.start_timeline();
  const auto issued = device->mark(), previous = device->mark(), end = device->mark();
  const TraceLabel label{.name = "all_reduce", .lane = TraceLane::kCommunication, .group = "tp"};
  trace.add(DeviceSpan{.label = label, .begin = issued, .end = end, .after = previous});
  trace.add(DeviceSpan{.label = label, .begin = previous, .end = end, .after = issued});
  trace.add(DeviceSpan{.label = label, .begin = end, .end = issued});  // empty, seen through inexact clocks
  device->pass(0, 10);
  device->pass(1, 25);
  device->pass(2, 40);
  const auto spans = trace.take_spans();
  ASSERT_EQ(spans.size(), 3U);
  for (const size_t i : {0, 1}) {
    EXPECT_EQ(spans[i].begin_ns, 25);
    EXPECT_EQ(spans[i].end_ns, 40);
  }
  EXPECT_EQ(spans[2].begin_ns, spans[2].end_ns) << "never negative";
}

TEST_F(DeviceTrace, WhatIsRecordedIntoAGraphIsLeftOut) {
  trace.start_timeline();
  trace.set_timing_level(2);
  {
    const auto replay = trace.span({.name = "forward-backward-graph", .level = 2});
    device->records_graph = true;
    { const auto inner = trace.span({.name = "forward-compute", .level = 2}); }
    device->records_graph = false;
  }
  {
    const auto torn = trace.span({.name = "torn", .level = 2});
    device->records_graph = true;
  }
  device->records_graph = false;
  const auto spans = trace.take_spans();
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_STREQ(spans[0].label.name, "forward-backward-graph");
}

TEST_F(DeviceTrace, ANewTimelineForgetsTheOldOne) {
  trace.start_timeline();
  { const auto old = trace.span({"old"}); }
  trace.stop_timeline();
  trace.start_timeline();
  { const auto fresh = trace.span({"new"}); }
  const auto spans = trace.take_spans();
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_STREQ(spans[0].label.name, "new");
}

TEST_F(DeviceTrace, AFailedDeviceLosesSpansAndSaysSo) {
  trace.start_timeline();
  { const auto span = trace.span({"forward"}); }
  { const auto span = trace.span({"lost"}); }
  device->pass(0, 1);
  device->pass(1, 2);
  device->failed = true;
  EXPECT_EQ(trace.take_spans().size(), 1U);
  EXPECT_EQ(trace.dropped_spans(), 1U);
}

// Marks hold resources of the device: they go when it has passed them, also if nobody takes totals.
TEST_F(DeviceTrace, ManySpansAreLookedAtInBetween) {
  trace.set_timing_level(0);
  for (int i = 0; i < 1000; ++i) {
    {
      const auto span = trace.span({.name = "forward", .level = 0});
    }
    for (const size_t back : {2, 1}) device->pass(device->placed.size() - back, device->now + 1);
  }
  int64_t held = 0;
  for (const auto& mark : device->placed) held += mark.use_count() > 1 ? 1 : 0;
  EXPECT_LT(held, 1000);
  EXPECT_EQ(trace.take_totals().at(0).count, 1000);
  EXPECT_EQ(device->waits, 0);
}

TEST_F(DeviceTrace, NamesAreWrittenElsewhere) {
  std::vector<std::string> written;
  trace.set_annotate([&](const TraceLabel& label) -> std::shared_ptr<void> {
    written.push_back(std::string("begin ") + label.name);
    return {static_cast<void*>(&written), [&](void*) { written.push_back("end"); }};
  });
  {
    const auto outer = trace.span({"forward-backward"});
    const auto inner = trace.span({.name = "load", .lane = TraceLane::kHost});
  }
  EXPECT_EQ(written, (std::vector<std::string>{"begin forward-backward", "begin load", "end", "end"}));
  EXPECT_TRUE(device->placed.empty()) << "nobody wants their times";
  trace.set_annotate({});
  { const auto span = trace.span({"later"}); }
  EXPECT_EQ(written.size(), 4U);
}

}  // namespace
}  // namespace megalith
