// Times of a GPU: spans, operations and waits in device time, read without stopping the device; and a profile.
#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "megalith/base/trace.h"
#include "megalith/comm/backend/stand_in.h"
#include "megalith/comm/op/current_device.h"
#include "megalith/comm/op/device_clock.h"
#include "megalith/comm/world.h"
#include "megalith/io/file_io.h"
#include "tests/cuda/device_case.h"
#include "tests/cuda/program_case.h"
#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

using nlohmann::json;

class OnCudaDeviceTime : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test_device() != TestDevice::kCuda) GTEST_SKIP() << "no GPU";
  }
};

const TraceSpan& span_named(const std::vector<TraceSpan>& spans, std::string_view name) {
  const auto found = std::ranges::find_if(spans, [&](const TraceSpan& span) { return span.label.name == name; });
  if (found == spans.end()) throw std::runtime_error("no span " + std::string(name));
  return *found;
}

double seconds(const TraceSpan& span) { return static_cast<double>(span.end_ns - span.begin_ns) / 1e9; }

// A stand-in lasts exactly as long as it is told to, by the device's clock. The host only enqueues it.
TEST_F(OnCudaDeviceTime, OperationsAndWaitsLastAsLongAsOnTheDevice) {
  constexpr double kLasts = 0.2;
  const at::Device device(at::kCUDA, 0);
  comm::make_device_current(device);
  TraceRecorder trace;
  trace.set_device_clock(comm::make_device_clock(device));
  const auto others = comm::make_stand_ins(
      {.lasts = [](const comm::GroupInfo&, const comm::OpInfo&) { return kLasts; }, .sent = {}}, device);
  const auto world = comm::World::rehearse(0, 2, {.device = device}, others);
  world->set_trace(&trace);
  const at::Tensor x = at::ones({1024}, device);
  world->world().all_reduce(x, comm::ReduceOp::kSum, "warm-up");  // loads kernels
  at::accelerator::synchronizeDevice(0);
  trace.start_timeline();
  trace.set_timing_level(1);
  const int64_t host_begin = trace.now_ns();
  {
    const auto span = trace.span({.name = "step", .level = 1});
    world->world().all_reduce(x, comm::ReduceOp::kSum, "first");
    world->world().all_reduce(x, comm::ReduceOp::kSum, "second");
  }
  at::accelerator::synchronizeDevice(0);
  const int64_t host_end = trace.now_ns();
  trace.stop_timeline();
  const auto totals = trace.take_totals();
  const auto spans = trace.take_spans();
  world->set_trace(nullptr);

  const TraceSpan& step = span_named(spans, "step");
  EXPECT_GE(seconds(step), 2 * kLasts - 1e-3);
  EXPECT_LE(seconds(step), static_cast<double>(host_end - host_begin) / 1e9 + 1e-3);
  // On the host's clock: not before the host began, not after it had waited for the device.
  EXPECT_GE(step.begin_ns, host_begin - 1'000'000);
  EXPECT_LE(step.end_ns, host_end + 1'000'000);
  int64_t operations = 0, previous_end = 0;
  for (const TraceSpan& span : spans) {
    if (span.label.lane != TraceLane::kCommunication) continue;
    ++operations;
    EXPECT_STREQ(span.label.group, "world");
    EXPECT_GE(seconds(span), kLasts - 1e-3) << span.label.purpose;
    EXPECT_GE(span.begin_ns, previous_end) << "operations of one communicator do not overlap";
    previous_end = span.end_ns;
  }
  EXPECT_EQ(operations, 2);
  const auto wait = std::ranges::find(totals, "communication-wait", &TraceRecorder::Total::name);
  ASSERT_NE(wait, totals.end());
  EXPECT_EQ(wait->count, 2);
  EXPECT_GE(wait->seconds, 2 * kLasts - 0.05);
}

// The device's clock itself: marks of work that the host has long left behind.
TEST_F(OnCudaDeviceTime, MarksAreInOrderAndOnTheHostsClock) {
  const at::Device device(at::kCUDA, 0);
  comm::make_device_current(device);
  const auto clock = comm::make_device_clock(device);
  const TraceRecorder host;
  at::Tensor a = at::ones({4096, 4096}, device);
  at::mm(a, a);
  at::accelerator::synchronizeDevice(0);
  const int64_t before = host.now_ns();
  std::vector<std::shared_ptr<DeviceMark>> marks{clock->mark()};
  for (int i = 0; i < 20; ++i) {
    at::mm(a, a);
    marks.push_back(clock->mark());
  }
  for (const auto& mark : marks) mark->wait();
  const int64_t after = host.now_ns();
  int64_t previous = before - 1'000'000;
  for (const auto& mark : marks) {
    const auto time = mark->time_ns();
    ASSERT_TRUE(time);
    EXPECT_GE(*time, previous);
    previous = *time;
  }
  EXPECT_LE(previous, after + 1'000'000);
  EXPECT_GT(*marks.back()->time_ns(), *marks.front()->time_ns());
}

std::vector<json> spans_of(const std::string& file) {
  const json whole = json::parse(io::read_text_file(file, 1 << 28));
  std::vector<json> spans;
  for (const json& event : whole.at("traceEvents"))
    if (event.at("ph") == "X") spans.push_back(event);
  return spans;
}

// Timers, timeline and profile of a run in which any wait of the host for the device is an error, with graphs and
// without. Graphs get the seeds of their masks without a wait.
TEST_F(OnCudaDeviceTime, ARunIsTimedWithoutWaiting) {
  const ProgramCase runs(llama_config({}), std::vector<int>(64, 129));
  const std::map<std::string, std::string> forbidden{{"MEGALITH_FORBID_DEVICE_WAITS", "1"}};
  for (const std::string graphs : {"none", "local"}) {
    const auto run =
        runs.train("timed_" + graphs,
                   {"--cutoff_len=128", "--max_steps=8", "--per_device_train_batch_size=4", "--timing",
                    "--timing_log_level=2", "--trace=5-6", "--hidden_dropout=0.1", "--cuda_graph_impl=" + graphs},
                   forbidden);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    expect_contains(run.err, "forward-backward ...");
    double busy = 0;
    for (const json& span : spans_of(runs.path("timed_" + graphs + "/trace.json")))
      if (span.at("name") == "forward-backward") busy += span.at("dur").get<double>();
    EXPECT_GT(busy, 0);
  }
}

// Batches are copied in the stream of the computation, activations beside it: those of 7 layers and 2 micro-batches.
TEST_F(OnCudaDeviceTime, CopiesHaveARowOfTheirOwn) {
  const ProgramCase runs(llama_config({.width = 1024, .layers = 8}), std::vector<int>(16, 4097));
  const auto run =
      runs.train("copies", {"--cutoff_len=4096", "--max_steps=4", "--per_device_train_batch_size=1", "--trace=4-4",
                            "--gradient_accumulation_steps=2", "--cpu_offloading_num_layers=7"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json whole = json::parse(io::read_text_file(runs.path("copies/trace.json"), 1 << 28));
  int row = -1;
  for (const json& event : whole.at("traceEvents"))
    if (event.at("name") == "thread_name" && event.at("args").at("name") == "copies") row = event.at("tid");
  ASSERT_GE(row, 0) << "no row of copies";
  std::map<std::string, int> counts;
  std::vector<std::pair<double, double>> passes, sent;
  for (const json& span : spans_of(runs.path("copies/trace.json"))) {
    const std::string name = span.at("name");
    const std::pair<double, double> time(span.at("ts"), span.at("ts").get<double>() + span.at("dur").get<double>());
    if (name.starts_with("forward-compute")) passes.push_back(time);
    if (span.at("tid") != row) continue;
    ++counts[name];
    EXPECT_GT(time.second, time.first) << name;
    if (name == "activations-to-host") sent.push_back(time);
  }
  EXPECT_EQ(counts["batch-to-device"], 2);
  EXPECT_EQ(counts["activations-to-host"], 2 * 7);
  EXPECT_GE(counts["activations-to-device"], 2 * 7);
  ASSERT_EQ(passes.size(), 2U);
  const auto beside = [&](const auto& copy) {
    return std::ranges::any_of(passes,
                               [&](const auto& pass) { return copy.first < pass.second && copy.second > pass.first; });
  };
  EXPECT_GE(std::ranges::count_if(sent, beside), 2 * 6) << "copies that run beside a forward pass";
}

TEST_F(OnCudaDeviceTime, AProfileShowsKernels) {
  const ProgramCase runs(llama_config({}), std::vector<int>(64, 129));
  const auto run = runs.train("profiled", {"--cutoff_len=128", "--max_steps=6", "--per_device_train_batch_size=4",
                                           "--profile", "--profile_step_start=3", "--profile_step_end=5"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (const char* part : {"costliest kernels", "matrix products", "optimizer", "idle", "exposed communication"})
    expect_contains(run.err, part);
  std::map<std::string, int> categories;
  bool named = false;
  for (const json& span : spans_of(runs.path("profiled/profile/rank-0.json"))) {
    ++categories[span.value("cat", "")];
    named = named || span.at("name") == "forward-backward";
  }
  EXPECT_GT(categories["kernel"], 0);
  EXPECT_GT(categories["gpu_memcpy"], 0);
  EXPECT_TRUE(named) << "spans are part of the profile";
}

}  // namespace
}  // namespace megalith::testing
