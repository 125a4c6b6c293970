// Every way through the states, without a model: one machine, or several with a shared answer.
#include "megalith/train/faults/rerun_machine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "megalith/train/faults/rejection_tracker.h"
#include "megalith/train/settings/rerun_settings.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::train {
namespace {

using Next = RerunMachine::Next;
using config::RerunMode;
using testing::expect_contains;
using testing::TempFolder;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

RerunMachine machine_of(RerunMachine::Settings settings = {}, RejectionTracker* tracker = nullptr) {
  return {std::move(settings), [](std::vector<bool> mine) { return mine; }, tracker};
}

// A run of forward and backward with one checked value.
CheckedResult loss(double value, bool fatal = true, double tolerance = 0) {
  return {"loss", value, !std::isfinite(value) || value > 100, tolerance, fatal};
}

// Goes through a step; the value of each run of it is the next of `values`.
struct Step {
  std::vector<Next> way;
  size_t runs = 0;
};
Step step(RerunMachine& machine, int64_t number, const std::vector<CheckedResult>& values) {
  Step done;
  while (true) {
    done.way.push_back(machine.next(number));
    if (done.way.back() == Next::kUpdate || done.way.back() == Next::kLeave) return done;
    machine.validate({"other", 1, false});
    if (!values.empty()) machine.validate(values[std::min(done.runs, values.size() - 1)]);
    ++done.runs;
  }
}

const std::vector<Next> kOnce{Next::kRun, Next::kUpdate};
const std::vector<Next> kTwice{Next::kRun, Next::kRerun, Next::kUpdate};
const std::vector<Next> kTwiceAndOut{Next::kRun, Next::kRerun, Next::kLeave};

TEST(RerunMachine, GoodStepsRunOnce) {
  RerunMachine machine = machine_of();
  for (int number = 1; number < 4; ++number) EXPECT_EQ(step(machine, number, {loss(2)}).way, kOnce);
  EXPECT_EQ(machine.state(), RerunState::kNotRunning);
}

TEST(RerunMachine, TheFirstStepIsNotValidated) {
  RerunMachine machine = machine_of();
  EXPECT_EQ(step(machine, 7, {loss(kNan)}).way, kOnce);
  EXPECT_EQ(step(machine, 8, {loss(kNan)}).way, kTwiceAndOut);
}

TEST(RerunMachine, AnotherValueIsATransientError) {
  RerunMachine machine = machine_of({.place = {.rank = 3, .node = "gpu03", .device = "1"}});
  step(machine, 1, {});
  EXPECT_EQ(step(machine, 2, {loss(kNan), loss(2)}).way, kTwiceAndOut);
  EXPECT_EQ(machine.demand().exit_code, kExitResultRejected);
  EXPECT_FALSE(machine.demand().save);
  for (const char* part : {"rank 3", "node gpu03", "device 1", "iteration 2", "transient error", "value nan, again 2"})
    expect_contains(machine.demand().text, part);
}

TEST(RerunMachine, WhatIsNotFatalGoesOn) {
  RerunMachine machine = machine_of();
  step(machine, 1, {});
  EXPECT_EQ(step(machine, 2, {loss(500, false), loss(2, false)}).way, kTwice);
  EXPECT_EQ(step(machine, 3, {loss(500, false)}).way, kTwice);
  EXPECT_EQ(step(machine, 4, {loss(2)}).way, kOnce);
}

TEST(RerunMachine, TheSameValueAsksForAnotherDevice) {
  RerunMachine machine = machine_of({.place = {.rank = 0, .node = "a", .device = "0"}});
  step(machine, 1, {});
  EXPECT_EQ(step(machine, 2, {loss(kNan)}).way, kTwiceAndOut);
  EXPECT_EQ(machine.state(), RerunState::kWillRerunFromCheckpoint);
  EXPECT_EQ(machine.demand().exit_code, kExitResumeElsewhere);
  EXPECT_TRUE(machine.demand().save);
  ASSERT_TRUE(machine.rejected());
  EXPECT_EQ(machine.rejected()->iteration, 2);
  EXPECT_EQ(machine.rejected()->message, "loss");
}

// From a checkpoint: on which device, with which value; how it ends.
struct Again {
  const char* device;
  double value;
  bool fatal;
  std::vector<Next> way;
  int exit_code;
  const char* text;
};

TEST(RerunMachine, FromACheckpoint) {
  const RejectedResult saved{
      .rank = 0, .iteration = 2, .message = "loss", .call = 0, .value = kNan, .node = "a", .device = "0"};
  const std::vector<Next> out{Next::kRun, Next::kLeave};
  for (const Again& how : {Again{"0", kNan, true, out, kExitResumeElsewhere, "start the run on another one"},
                           Again{"1", 2, true, out, kExitResultRejected, "a persistent error of node a, device 0"},
                           Again{"1", kNan, true, out, kExitResultRejected, "the result is correct"},
                           Again{"1", kNan, false, kOnce, 0, ""}}) {
    RerunMachine machine = machine_of({.place = {.rank = 0, .node = "a", .device = how.device}});
    machine.resume({saved});
    EXPECT_EQ(machine.state(), RerunState::kRerunningFromCheckpoint);
    EXPECT_EQ(step(machine, 2, {loss(how.value, how.fatal)}).way, how.way) << how.text;
    if (how.exit_code == 0) {
      EXPECT_EQ(step(machine, 3, {loss(2)}).way, kOnce);
      continue;
    }
    EXPECT_EQ(machine.demand().exit_code, how.exit_code) << how.text;
    EXPECT_FALSE(machine.demand().save);
    expect_contains(machine.demand().text, how.text);
  }
}

TEST(RerunMachine, OtherRanksFollow) {
  // Two ranks, one answer: rank 1 rejects, rank 0 does not.
  std::vector<bool> other(2);
  RerunMachine good(
      {},
      [&](std::vector<bool> mine) {
        for (size_t i = 0; i < mine.size(); ++i) mine[i] = mine[i] || other[i];
        return mine;
      },
      nullptr);
  step(good, 1, {});
  EXPECT_EQ(good.next(2), Next::kRun);
  good.validate(loss(2));
  other = {true, false};
  EXPECT_EQ(good.next(2), Next::kRerun);
  EXPECT_EQ(good.next(2), Next::kLeave);
  EXPECT_EQ(good.demand().exit_code, kExitResumeElsewhere);
  EXPECT_TRUE(good.demand().text.empty());
  EXPECT_FALSE(good.rejected());
}

TEST(RerunMachine, TheSameCallIsComparedAndNoOther) {
  RerunMachine machine = machine_of();
  step(machine, 1, {});
  const auto run = [&](std::vector<double> values) {
    for (const double value : values) machine.validate(loss(value));
  };
  EXPECT_EQ(machine.next(2), Next::kRun);
  run({1, kNan, 3});
  EXPECT_EQ(machine.rejected()->call, 1);
  EXPECT_EQ(machine.next(2), Next::kRerun);
  run({kNan, 2, kNan});  // only the second counts
  EXPECT_EQ(machine.next(2), Next::kLeave);
  EXPECT_EQ(machine.demand().exit_code, kExitResultRejected);
}

TEST(RerunMachine, Tolerance) {
  for (const auto& [again, code] : {std::pair{500.4, kExitResumeElsewhere}, {501.0, kExitResultRejected}}) {
    RerunMachine machine = machine_of();
    step(machine, 1, {});
    step(machine, 2, {loss(500, true, 0.001), loss(again, true, 0.001)});
    EXPECT_EQ(machine.demand().exit_code, code) << again;
  }
}

TEST(RerunMachine, RelativeDifference) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(relative_difference(2, 2), 0);
  EXPECT_EQ(relative_difference(kNan, kNan), 0);
  EXPECT_EQ(relative_difference(kInf, kInf), 0);
  EXPECT_EQ(relative_difference(kNan, 1), kInf);
  EXPECT_EQ(relative_difference(1, kInf), kInf);
  EXPECT_EQ(relative_difference(-kInf, kInf), kInf);
  EXPECT_EQ(relative_difference(1, 3), 1);
  EXPECT_EQ(relative_difference(1, -1), kInf);
}

TEST(RerunMachine, InjectedErrors) {
  using Injection = InjectedFault;
  for (const auto& [kind, code] : {std::pair{Injection::kTransientError, kExitResultRejected},
                                   {Injection::kPersistentError, kExitResumeElsewhere},
                                   {Injection::kCorrectResult, kExitResumeElsewhere}}) {
    RerunMachine machine = machine_of({.injection_rate = 1, .injection = kind});
    step(machine, 1, {loss(2)});
    EXPECT_EQ(step(machine, 2, {loss(2)}).way, kTwiceAndOut);
    EXPECT_EQ(machine.demand().exit_code, code);
    if (code != kExitResumeElsewhere) continue;
    RerunMachine elsewhere = machine_of({.injection = kind, .place = {.rank = 0, .node = "b"}});
    elsewhere.resume(rejected_from_json(rejected_to_json({*machine.rejected()}), "test"));
    step(elsewhere, 2, {loss(2)});
    expect_contains(elsewhere.demand().text, kind == Injection::kPersistentError ? "persistent error" : "is correct");
  }
}

TEST(RerunMachine, InjectionRate) {
  RerunMachine machine = machine_of({.injection_rate = 50});
  int rejected = 0;
  for (int number = 1; number <= 2000; ++number) {
    machine.next(number);
    machine.validate(loss(2, false));
    if (machine.rejected()) ++rejected;
    while (machine.next(number) == Next::kRerun) machine.validate(loss(2, false));
  }
  EXPECT_NEAR(rejected, 40, 25);
}

TEST(RerunMachine, DisabledModeThrowsOrWarns) {
  RerunMachine machine = machine_of({.mode = RerunMode::kDisabled, .place = {.rank = 5, .node = "n", .device = "2"}});
  EXPECT_EQ(machine.next(1), Next::kRun);
  EXPECT_NO_THROW(machine.validate(loss(500, false)));
  try {
    machine.validate(loss(kNan));
    FAIL();
  } catch (const ResultRejected& error) {
    expect_contains(error.what(), "Rank 5, node n, device 2, iteration 1: Unexpected result nan (message='loss')");
  }
  EXPECT_EQ(machine.next(1), Next::kUpdate);
}

TEST(RerunMachine, StatisticsRunEachStepTwice) {
  RerunMachine machine = machine_of({.mode = RerunMode::kReportDeterminismStats});
  EXPECT_EQ(step(machine, 1, {loss(1)}).way, kOnce);
  EXPECT_EQ(step(machine, 2, {loss(1), loss(3)}).way, kTwice);
  EXPECT_EQ(step(machine, 3, {loss(kNan)}).way, kTwice);
  const auto found = machine.take_differences();
  EXPECT_EQ(found.at("loss"), (std::vector<double>{1, 0}));
  EXPECT_EQ(found.at("other"), (std::vector<double>{0, 0}));
  EXPECT_TRUE(machine.take_differences().empty());
  expect_contains(describe_differences({1, 0}), "2 results, 1 identical, avg 5.000e-01");
}

TEST(RerunMachine, Spikes) {
  RerunMachine machine = machine_of();
  for (int number = 1; number <= 100; ++number) {
    machine.next(number);
    EXPECT_FALSE(machine.is_spike("loss", number == 50 ? -4.0 : 1.0));
    machine.next(number);
  }
  machine.next(101);
  EXPECT_FALSE(machine.is_spike("loss", 39));
  EXPECT_TRUE(machine.is_spike("loss", 40));
  EXPECT_TRUE(machine.is_spike("loss", -50));
  EXPECT_FALSE(machine.is_spike("grads", 1000));
}

TEST(RerunMachine, RecordsSurviveAsText) {
  const std::vector<RejectedResult> all{{1, 12, "NaN in \"it\"", 3, kNan, "node", "2", true},
                                        {4, 12, "spike", 0, 1e300, "other", "0", false}};
  const auto back = rejected_from_json(rejected_to_json(all), "test");
  ASSERT_EQ(back.size(), 2U);
  EXPECT_TRUE(std::isnan(back[0].value));
  EXPECT_EQ(back[1], all[1]);
  try {
    rejected_from_json(R"([{"rank":1}])", "trainer_state.json");
    FAIL();
  } catch (const DataError& error) {
    expect_contains(error.what(), "trainer_state.json");
  }
}

// ---- The tracker's file ----

std::vector<std::string> lines_of(const std::filesystem::path& file) {
  std::vector<std::string> all;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) all.push_back(line);
  return all;
}

TEST(RejectionTracker, WritesOneLinePerEvent) {
  const TempFolder folder;
  const ResultPlace place{.rank = 2, .node = "gpu03", .device = "1"};
  RejectionTracker tracker(folder / "tracker", place, "job7");
  RerunMachine machine = machine_of({.place = place}, &tracker);
  step(machine, 1, {});
  step(machine, 2, {loss(kNan)});
  const auto lines = lines_of(folder / "tracker");
  ASSERT_EQ(lines.size(), 2U);
  expect_contains(lines[0], "node=gpu03 device=1 jobID=job7 rank=2 iteration=2 status=initial_run result=nan");
  expect_contains(lines[1], "status=first_rerun_reproducible result=nan message='loss'");
}

TEST(RejectionTracker, RefusesAFileThatCannotBeWritten) {
  try {
    RejectionTracker tracker("/nowhere/at/all", {}, "job");
    FAIL();
  } catch (const ConfigError& error) {
    expect_contains(error.what(), "result_rejected_tracker_filename");
    expect_contains(error.what(), "/nowhere/at/all");
  }
}

TEST(RejectionTracker, TellsWhichStepsToLeaveOut) {
  const TempFolder folder;
  const auto event = [&](int rank, const char* job, int64_t iteration, const char* status) {
    RejectionTracker(folder / "tracker", {.rank = rank}, job).append(iteration, status, kNan, "a message");
  };
  event(0, "a", 5, "initial_run");
  event(0, "a", 5, "first_rerun_reproducible");
  event(0, "b", 5, "second_rerun_reproducible");      // twice on one rank: left out
  event(1, "a", 6, "first_rerun_reproducible");       // once
  event(0, "a", 7, "first_rerun_not_reproducible");   // not reproducible
  event(0, "b", 7, "second_rerun_not_reproducible");  //
  event(0, "a", 8, "rerun_disabled");                 // several ranks of one job: not the data's fault
  event(1, "a", 8, "rerun_disabled");                 //
  event(0, "b", 8, "rerun_disabled");                 //
  std::ofstream(folder / "tracker", std::ios::app) << "not one of ours\n";
  EXPECT_EQ(iterations_to_skip(folder / "tracker"), (std::vector<int64_t>{5}));
  EXPECT_TRUE(iterations_to_skip(folder / "none").empty());
}

}  // namespace
}  // namespace megalith::train
