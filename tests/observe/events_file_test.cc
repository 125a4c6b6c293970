#include "megalith/observe/events_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/observe/some_run.h"

namespace megalith::observe {
namespace {

using nlohmann::json;
using testing::TempFolder;
using train::TrainerCallback;

std::vector<json> events_in(const std::filesystem::path& folder) {
  std::vector<json> events;
  std::istringstream text(text_of_file(folder / "events.jsonl"));
  for (std::string line; std::getline(text, line);) events.push_back(json::parse(line));
  return events;
}

std::vector<std::string> kinds_of(const std::vector<json>& events) {
  std::vector<std::string> kinds;
  for (const json& event : events) kinds.push_back(event.at("event"));
  return kinds;
}

TEST(EventsFile, TellsWhatHappenedBesideTheNumbers) {
  const TempFolder folder;
  SomeRun run;
  run.state.max_steps = 4;
  EventsFileCallback callback(folder / "out", {"a \"run\"\xff", {.world_size = 4, .tp = 2}}, std::nullopt);
  run.begin(callback);
  run.state.global_step = 1;
  run.log(callback, {{"loss", 2.5}, {"compute_seconds_max", 1.4}, {"compute_seconds_median", 1}});
  run.state.global_step = 2;
  run.log(callback, {{"loss", 2.5},
                     {"skipped_iter", 1},  // noticed at the end of the step
                     {"compute_seconds_max", 1.6},
                     {"compute_seconds_median", 1},
                     {"slowest_rank", 3}});
  run.log(callback, {{"eval_loss", 2.25}, {"eval_runtime", 0.1}});
  train::TrainerEvent saved{run.settings, run.state, run.control};
  saved.folder = folder / "out" / "checkpoint-2";
  callback.on_save(saved);
  run.end(callback);

  const std::vector<json> events = events_in(folder / "out");
  EXPECT_EQ(kinds_of(events), (std::vector<std::string>{"start", "straggler", "evaluation", "save", "end"}));
  EXPECT_EQ(events[0].at("layout").at("tp"), 2);
  EXPECT_EQ(events[0].at("layout").at("world_size"), 4);
  EXPECT_EQ(events[0].at("max_steps"), 4);
  EXPECT_EQ(events[1].at("rank"), 3);
  EXPECT_EQ(events[2].at("loss"), 2.25);
  EXPECT_EQ(events[3].at("checkpoint"), "checkpoint-2");
  EXPECT_EQ(events[4].at("finished"), false) << "two steps of four";
  for (const json& event : events) EXPECT_GT(event.at("time").get<double>(), 1.7e9);
  for (size_t i = 1; i < events.size(); ++i) EXPECT_EQ(events[i].at("step"), 2);
}

// Whether or not a line is logged for the step.
TEST(EventsFile, TellsOfEverySkippedStepAndWhy) {
  const TempFolder folder;
  SomeRun run;
  EventsFileCallback callback(folder.path(), {"", {.world_size = 1}}, std::nullopt);
  run.begin(callback);
  const auto end_step = [&](train::StepOutcome outcome, const train::MetricList& numbers) {
    ++run.state.global_step;
    train::TrainerEvent event{run.settings, run.state, run.control, numbers, {}, 0, outcome};
    callback.on_step_end(event);
  };
  using enum train::StepOutcome;
  end_step(kUpdated, {{"loss", 2}});
  end_step(kGradientsNotFinite, {{"loss", 2.5}, {"loss_scale", 1024}});
  end_step(kLossNotFinite, {{"loss", std::nan("")}, {"learning_rate", 1}});
  end_step(kLeftOut, {{"consumed_samples", 8}});
  std::vector<json> events = events_in(folder.path());
  ASSERT_EQ(kinds_of(events), (std::vector<std::string>{"start", "skip", "skip", "skip"}));
  for (json& event : events) event.erase("time");
  EXPECT_EQ(events[1], json::parse(R"({"step":2,"event":"skip","why":"gradients","loss":2.5,"loss_scale":1024.0})"));
  EXPECT_EQ(events[2], json::parse(R"({"step":3,"event":"skip","why":"loss","loss":null})"));
  EXPECT_EQ(events[3], json::parse(R"({"step":4,"event":"skip","why":"requested"})"));
}

TEST(EventsFile, ARestartedOrResumedRunContinuesTheFileAndAFreshOneDoesNot) {
  const TempFolder folder;
  SomeRun run;
  const auto start = [&](int64_t step, int restarts) {
    run.state.global_step = step;
    comm::RankLaunch launch;
    launch.restarts = restarts;
    if (restarts > 0) launch.earlier.push_back({.detect_seconds = 1.5});
    EventsFileCallback callback(folder.path(), {"", {.world_size = 1}}, launch);
    run.begin(callback);
  };
  start(0, 0);
  start(0, 1);
  EXPECT_EQ(kinds_of(events_in(folder.path())), (std::vector<std::string>{"start", "restart", "start"}));
  EXPECT_EQ(events_in(folder.path())[1].at("detect_seconds"), 1.5);
  // A crash in the middle of a line.
  std::ofstream(folder / "events.jsonl", std::ios::app) << R"({"time":1,"st)";
  start(20, 0);
  const std::string text = text_of_file(folder / "events.jsonl");
  EXPECT_EQ(std::ranges::count(text, '\n'), 5);
  EXPECT_EQ(json::parse(text.substr(text.rfind("{\"time\""))).at("step"), 20);
  start(0, 0);
  EXPECT_EQ(kinds_of(events_in(folder.path())), std::vector<std::string>{"start"});
}

TEST(EventsFile, OtherRanksWriteNothing) {
  const TempFolder folder;
  SomeRun run;
  run.state.is_world_process_zero = false;
  EventsFileCallback callback(folder / "out", {"", {.world_size = 2}}, std::nullopt);
  run.begin(callback);
  train::TrainerEvent skipped{run.settings, run.state, run.control, {}, {}, 0, train::StepOutcome::kLossNotFinite};
  callback.on_step_end(skipped);
  run.end(callback);
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

}  // namespace
}  // namespace megalith::observe
