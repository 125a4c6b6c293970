// Timelines of several ranks in one file in Chrome's format: clocks that differ are brought together, overlapping
// operations get rows of their own.
#include "megalith/observe/trace_export.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "megalith/observe/trace_callback.h"
#include "tests/observe/some_run.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"

namespace megalith::observe {
namespace {

using nlohmann::json;
using testing::Rank;
using testing::TempFolder;

std::vector<json> events_of(const json& trace, const std::string& phase) {
  std::vector<json> events;
  for (const json& event : trace.at("traceEvents"))
    if (event.at("ph") == phase) events.push_back(event);
  return events;
}

json event_named(const json& trace, const std::string& name) {
  for (const json& event : events_of(trace, "X"))
    if (event.at("name") == name) return event;
  ADD_FAILURE() << "no event " << name;
  return {};
}

TEST(TraceJson, ChromesFormatOnOneClock) {
  const std::vector<RankTrace> ranks{
      {"rank 0: pp 0",
       0,
       0,
       {{"forward", TraceLane::kCompute, 3, 1, 6000, 7500}, {"step", TraceLane::kHost, -1, -1, 5000, 9000}}},
      // Its clock is 4 microseconds late.
      {"", 4000, 2, {{"recv", TraceLane::kCommunication, 3, -1, 3500, 4500}}}};
  const json trace = json::parse(trace_json(ranks));
  const auto spans = events_of(trace, "X");
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[0], json::parse(R"({"name":"step","ph":"X","pid":0,"tid":2,"ts":0.0,"dur":4.0})"));
  EXPECT_EQ(spans[1], json::parse(R"({"name":"forward 3.1","ph":"X","pid":0,"tid":0,"ts":1.0,"dur":1.5,
                                      "args":{"microbatch":3,"chunk":1}})"));
  EXPECT_EQ(spans[2], json::parse(R"({"name":"recv 3.0","ph":"X","pid":1,"tid":1,"ts":2.5,"dur":1.0,
                                      "args":{"microbatch":3,"chunk":0}})"));
  std::vector<std::string> names;
  for (const json& event : events_of(trace, "M"))
    if (event.at("args").contains("name")) names.push_back(event["args"]["name"]);
  EXPECT_EQ(names, (std::vector<std::string>{"rank 0: pp 0", "compute", "communication", "host",
                                             "rank 1 (2 spans left out)", "compute", "communication", "host"}));
}

TEST(TraceJson, OverlappingOperationsGetRowsOfTheirOwn) {
  const auto lane = TraceLane::kCommunication;
  const json trace = json::parse(trace_json({{"",
                                              0,
                                              0,
                                              {{"c", lane, -1, -1, 40, 60},
                                               {"inside a", lane, -1, -1, 10, 20},
                                               {"a", lane, -1, -1, 10, 50, "gradients"},
                                               {"b", lane, -1, -1, 30, 70},
                                               {"after a", lane, -1, -1, 50, 55}}}}));
  std::map<std::string, int> threads;
  for (const json& event : events_of(trace, "X")) threads[event.at("name")] = event.at("tid");
  EXPECT_EQ(threads, (std::map<std::string, int>{{"a", 1}, {"inside a", 1}, {"after a", 1}, {"b", 3}, {"c", 3}}));
  std::map<int, std::string> rows;
  for (const json& event : events_of(trace, "M"))
    if (event.at("name") == "thread_name") rows[event.at("tid")] = event.at("args").at("name");
  EXPECT_EQ(rows.at(1), "communication");
  EXPECT_EQ(rows.at(3), "communication (2)");
}

TEST(TraceJson, EachGroupHasRowsOfItsOwn) {
  const auto lane = TraceLane::kCommunication;
  const json trace = json::parse(trace_json({{"",
                                              0,
                                              0,
                                              {{"all_reduce", lane, -1, -1, 10, 20, "gradients", "dp"},
                                               {"all_gather", lane, -1, -1, 30, 40, "", "tp"},
                                               {"reduce_scatter", lane, -1, -1, 35, 50, "", "tp"},
                                               {"send", lane, -1, -1, 40, 45, "", "tp"},
                                               {"wait", TraceLane::kCompute, -1, -1, 5, 6, "", "tp"}}}}));
  std::map<int, std::string> rows;
  for (const json& event : events_of(trace, "M"))
    if (event.at("name") == "thread_name") rows[event.at("tid")] = event.at("args").at("name");
  std::map<std::string, std::string> places;
  for (const json& event : events_of(trace, "X")) places[event.at("name")] = rows.at(event.at("tid"));
  EXPECT_EQ(places, (std::map<std::string, std::string>{{"all_reduce", "communication dp"},
                                                        {"all_gather", "communication tp"},
                                                        {"reduce_scatter", "communication tp (2)"},
                                                        {"send", "communication tp"},
                                                        {"wait", "compute"}}));
  EXPECT_EQ(event_named(trace, "all_reduce").at("args"), json::parse(R"({"purpose":"gradients","group":"dp"})"));
}

// Only ranks that copy have a row of copies: below those of communication, and apart from both.
TEST(TraceJson, CopiesHaveARowOfTheirOwn) {
  const json trace = json::parse(trace_json({{"",
                                              0,
                                              0,
                                              {{"forward", TraceLane::kCompute, 0, 0, 10, 50},
                                               {"activations-to-host", TraceLane::kCopies, -1, -1, 20, 60},
                                               {"batch-to-device", TraceLane::kCopies, -1, -1, 5, 8}}}}));
  std::map<int, std::string> rows;
  std::map<std::string, int> order;
  for (const json& event : events_of(trace, "M")) {
    if (event.at("name") == "thread_name") rows[event.at("tid")] = event.at("args").at("name");
    if (event.at("name") == "thread_sort_index") order[rows.at(event.at("tid"))] = event.at("args").at("sort_index");
  }
  for (const char* name : {"activations-to-host", "batch-to-device"})
    EXPECT_EQ(rows.at(event_named(trace, name).at("tid")), "copies");
  EXPECT_LT(order.at("compute"), order.at("communication"));
  EXPECT_LT(order.at("communication"), order.at("copies"));
  EXPECT_LT(order.at("copies"), order.at("host"));
}

TEST(TraceJson, NoSpansAtAll) {
  EXPECT_TRUE(events_of(json::parse(trace_json({RankTrace{}, RankTrace{}})), "X").empty());
  EXPECT_TRUE(json::parse(trace_json({})).at("traceEvents").empty());
}

TEST(TraceBytes, AreReadBack) {
  const RankTrace trace{"rank 7", -123456789, 4, {{"a", TraceLane::kHost, 1, 2, 1LL << 60, (1LL << 60) + 5, "p", "g"}}};
  EXPECT_EQ(trace_from_bytes(to_bytes(trace)), trace);
  EXPECT_EQ(trace_from_bytes(to_bytes({})), RankTrace{});
  for (const std::string& bad : {std::string(), std::string("x"), to_bytes(trace).substr(0, 20)})
    testing::expect_error<CommError>([&] { trace_from_bytes(bad); }, {"timeline"});
}

// A clock that runs `skew` ahead of the machine's.
TraceRecorder::Clock skewed(int64_t skew) {
  return [skew] { return skew + std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); };
}

constexpr int64_t kSecond = 1'000'000'000;

// The second rank's clock is 1000 ahead. It enters 30 after rank 0, and leaves 10 after it; then both are quicker.
TEST(ClockOffset, LiesBetweenTheBoundsOfAllBarriers) {
  const ClockMarks reference{{0, 50}, {100, 120}}, own{{1030, 1060}, {1110, 1124}};
  // The first barrier: from 0 - 1060 to 50 - 1030; the second: from 100 - 1124 to 120 - 1110.
  EXPECT_EQ(clock_offset_ns(reference, own), (-1024 + -990) / 2);
  EXPECT_EQ(clock_offset_ns(own, own), 0);
  testing::expect_error<InternalError>([&] { clock_offset_ns(reference, {own[0]}); }, {"2 and 1 marks"});
}

TEST(ClockOffset, IsFoundByBarriers) {
  testing::run_ranks(3, [](const Rank& r) {
    const TraceRecorder recorder(skewed(r.rank * 100 * kSecond));
    const int64_t offset = clock_offset_ns(r.world.world(), recorder);
    // A barrier of threads, on a busy machine.
    EXPECT_NEAR(static_cast<double>(offset), -100.0 * kSecond * r.rank, 0.05 * kSecond);
  });
}

// Rank 0 computes and sends, rank 1 receives and computes: what was sent first is received later, although rank 1's
// clock is an hour late.
TEST(TraceFile, RanksAreInOrderOnOneClock) {
  const TempFolder folder;
  const auto file = folder / "traces" / "trace.json";
  testing::run_ranks(2, [&](const Rank& r) {
    const comm::Group world = r.world.world();
    TraceRecorder recorder(skewed(-3600 * kSecond * r.rank));
    SomeRun run;
    run.state.max_steps = 5;
    TraceCallback callback(world, recorder,
                           {.steps = {2, 3}, .file = file, .label = "stage " + std::to_string(r.rank)});
    for (int step = 1; step <= 4; ++step) {
      run.tell(callback, &train::TrainerCallback::on_step_begin);
      EXPECT_EQ(recorder.timeline_on(), step == 2 || step == 3);
      const at::Tensor tensor = at::ones({4});
      if (r.rank == 0) {
        {
          const auto span = recorder.span({.name = "forward", .microbatch = step, .chunk = 0});
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        world.send(tensor, 1);
      } else {
        world.recv(tensor, 0);
        const auto span = recorder.span({.name = "backward", .microbatch = step, .chunk = 0});
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      world.barrier();
      run.state.global_step = step;
      run.tell(callback, &train::TrainerCallback::on_step_end);
    }
    run.end(callback);
  });
  const json trace = json::parse(text_of_file(file));
  EXPECT_EQ(events_of(trace, "X").size(), 4U);
  double before = -1;
  for (const char* name : {"forward 2.0", "backward 2.0", "forward 3.0", "backward 3.0"}) {
    const json event = event_named(trace, name);
    const double begin = event.at("ts");
    EXPECT_GT(begin, before) << name;
    EXPECT_GE(event.at("dur").get<double>(), 19'000.0);
    before = begin + 10'000;  // half of the span before: more than the clocks can be apart
  }
}

TEST(TraceFile, ShowsOperationsOfAllGroups) {
  testing::run_ranks(2, [&](const Rank& r) {
    TraceRecorder recorder;
    r.world.set_trace(&recorder);
    const comm::Group world = r.world.world();
    const at::Tensor tensor = at::ones({4});
    world.all_reduce(tensor, comm::ReduceOp::kSum, "before the timeline");
    recorder.start_timeline();
    world.all_reduce(tensor, comm::ReduceOp::kSum, "loss");
    auto work = r.world.group("tp", {0, 1}).all_reduce_async(tensor);
    work.wait();
    recorder.stop_timeline();
    const auto spans = recorder.take_spans();
    r.world.set_trace(nullptr);
    ASSERT_EQ(spans.size(), 2U);
    EXPECT_STREQ(spans[0].label.name, "all_reduce");
    EXPECT_STREQ(spans[0].label.purpose, "loss");
    EXPECT_STREQ(spans[0].label.group, "world");
    EXPECT_STREQ(spans[1].label.group, "tp");
    EXPECT_EQ(spans[1].label.lane, TraceLane::kCommunication);
    EXPECT_LE(spans[0].begin_ns, spans[0].end_ns);
    EXPECT_LE(spans[0].end_ns, spans[1].end_ns);
  });
}

TEST(TraceFile, ARunThatEndsEarlierStillWrites) {
  const TempFolder folder;
  testing::run_ranks(1, [&](const Rank& r) {
    TraceRecorder recorder;
    SomeRun run;
    TraceCallback callback(r.world.world(), recorder, {.steps = {1, 9}, .file = folder / "trace.json"});
    run.tell(callback, &train::TrainerCallback::on_step_begin);
    { const auto span = recorder.span({.name = "forward"}); }
    run.state.global_step = 1;
    run.tell(callback, &train::TrainerCallback::on_step_end);
    EXPECT_FALSE(std::filesystem::exists(folder / "trace.json"));
    run.end(callback);
  });
  EXPECT_EQ(events_of(json::parse(text_of_file(folder / "trace.json")), "X").size(), 1U);
}

}  // namespace
}  // namespace megalith::observe
