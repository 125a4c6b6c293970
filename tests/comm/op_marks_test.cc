// Operations on a device that a test moves by hand: how long each occupies its communicator, and how long the rank's
// stream stands still for it.
#include "megalith/comm/op/op_marks.h"

#include <gtest/gtest.h>

#include "tests/support/fake_device_clock.h"

namespace megalith::comm {
namespace {

using testing::FakeDeviceClock;

const c10::Stream kCommunicator(c10::Stream::UNSAFE, at::kCPU, 7), kOther(c10::Stream::UNSAFE, at::kCPU, 8);

class OpMarksTest : public ::testing::Test {
 protected:
  OpMarksTest() {
    trace.set_device_clock(device);
    marks.set_trace(&trace);
  }

  // Starts an operation: a mark where it is issued and one at its end, in this order.
  void start(const Op& op, const c10::Stream& stream) {
    auto issued = marks.issue();
    marks.started({op}, "tp", std::move(issued), stream);
  }
  void wait(const Op& op) {
    auto before = marks.before_wait();
    marks.waited(op, "tp", std::move(before));
  }

  TraceRecorder trace;
  const std::shared_ptr<FakeDeviceClock> device = std::make_shared<FakeDeviceClock>();
  OpMarks marks;
  const Op reduce{.kind = OpKind::kAllReduce, .label = "gradients"};
};

TEST_F(OpMarksTest, OperationsOfACommunicatorRunOneAfterTheOther) {
  trace.start_timeline();
  start(reduce, kCommunicator);  // marks 0 and 1
  start(reduce, kCommunicator);  // 2 and 3
  start(reduce, kOther);         // 4 and 5
  device->pass(0, 10);
  device->pass(1, 50);
  device->pass(2, 20);  // issued while the first one runs
  device->pass(3, 80);
  device->pass(4, 30);
  device->pass(5, 35);
  const auto spans = trace.take_spans();
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[0].begin_ns, 10);
  EXPECT_EQ(spans[0].end_ns, 50);
  EXPECT_EQ(spans[1].begin_ns, 50) << "its stream was busy until then";
  EXPECT_EQ(spans[1].end_ns, 80);
  EXPECT_EQ(spans[2].begin_ns, 30) << "another stream";
  EXPECT_STREQ(spans[0].label.name, "all_reduce");
  EXPECT_STREQ(spans[0].label.purpose, "gradients");
  EXPECT_STREQ(spans[0].label.group, "tp");
  EXPECT_EQ(spans[0].label.lane, TraceLane::kCommunication);
}

TEST_F(OpMarksTest, WithoutATimelineOnlyWaitsAreMeasured) {
  start(reduce, kCommunicator);
  EXPECT_TRUE(device->placed.empty());
  wait(reduce);
  EXPECT_EQ(device->placed.size(), 2U);
}

TEST_F(OpMarksTest, WaitsCountAsSoonAsTheDeviceHasGotThere) {
  wait(reduce);
  wait(reduce);
  EXPECT_EQ(marks.waited_seconds(), 0);
  device->pass(0, 1'000'000'000);
  device->pass(1, 3'000'000'000);
  EXPECT_DOUBLE_EQ(marks.waited_seconds(), 2);
  EXPECT_DOUBLE_EQ(marks.waited_seconds(), 2) << "each wait once";
  device->pass(2, 3'000'000'000);
  device->pass(3, 3'500'000'000);
  EXPECT_DOUBLE_EQ(marks.waited_seconds(), 2.5);
  EXPECT_EQ(device->waits, 0);
}

TEST_F(OpMarksTest, WaitsAreSpansOfTheComputeLaneAndATimer) {
  trace.start_timeline();
  trace.set_timing_level(1);
  wait(reduce);
  device->pass(0, 100);
  device->pass(1, 400);
  const auto totals = trace.take_totals();
  ASSERT_EQ(totals.size(), 1U);
  EXPECT_EQ(totals[0].name, "communication-wait");
  const auto spans = trace.take_spans();
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].label.lane, TraceLane::kCompute);
  EXPECT_EQ(spans[0].end_ns - spans[0].begin_ns, 300);
}

TEST_F(OpMarksTest, WhatIsRecordedIntoAGraphIsNotMeasured) {
  trace.start_timeline();
  device->records_graph = true;
  start(reduce, kCommunicator);
  wait(reduce);
  device->records_graph = false;
  EXPECT_TRUE(trace.take_spans().empty());
  EXPECT_EQ(marks.waited_seconds(), 0);
}

TEST_F(OpMarksTest, WhatTheHostDoesIsNotMeasuredHere) {
  trace.start_timeline();
  marks.started({reduce}, "tp", marks.issue(), std::nullopt);
  EXPECT_TRUE(trace.take_spans().empty());
  marks.set_trace(nullptr);
  start(reduce, kCommunicator);
  wait(reduce);
  EXPECT_EQ(marks.waited_seconds(), 0);
}

}  // namespace
}  // namespace megalith::comm
