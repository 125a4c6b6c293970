#include "megalith/observe/live_file.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megalith/train/step/expert_loads.h"
#include "tests/observe/some_run.h"
#include "tests/support/run_ranks.h"

namespace megalith::observe {
namespace {

using nlohmann::json;
using testing::Rank;
using testing::TempFolder;
using train::TrainerCallback;

TEST(LiveFile, GathersTimesAndExpertsOfAllRanks) {
  const TempFolder folder;
  testing::run_ranks(2, [&](const Rank& r) {
    double waited = 0;
    int64_t noted = 0;
    SomeRun run;
    LiveFileCallback::Settings settings;
    settings.folder = folder.path();
    settings.waited_seconds = [&] { return waited; };
    settings.peak_bytes = [&] { return 1000 + r.rank; };
    if (r.rank == 1) settings.gpu = [] { return GpuReading{.utilization = 0.97, .watts = 640}; };
    settings.note_experts = [&] { ++noted; };
    settings.take_experts = [&] {
      EXPECT_EQ(noted, run.state.global_step);
      return std::vector<train::ExpertLoad>{{1 - r.rank, {1.0F, static_cast<float>(r.rank)}}};
    };
    LiveFileCallback callback(r.world.world(), settings);
    run.state.is_world_process_zero = r.rank == 0;
    for (int step = 1; step <= 3; ++step) {
      run.tell(callback, &TrainerCallback::on_step_begin);
      waited += 0.25 * r.rank;
      run.tell(callback, &TrainerCallback::on_optimizer_step);
      run.state.global_step = step;
      run.tell(callback, &TrainerCallback::on_step_end);
      if (step != 2) run.log(callback, {{"loss", 1}});
    }
    run.log(callback, {{"eval_loss", 1}});
    run.end(callback);
  });
  const json live = json::parse(text_of_file(folder / "live.json"));
  EXPECT_EQ(live.at("step"), 3) << "what was not written within two seconds is written at the end";
  ASSERT_EQ(live.at("ranks").size(), 2U);
  EXPECT_NEAR(live.at("ranks").at(1).at("wait_seconds").get<double>(), 0.25, 1e-9) << "a step's mean";
  EXPECT_EQ(live.at("ranks").at(0).at("wait_seconds"), 0);
  EXPECT_EQ(live.at("ranks").at(1).at("peak_bytes"), 1001);
  EXPECT_FALSE(live.at("ranks").at(0).contains("gpu"));
  EXPECT_EQ(live.at("ranks").at(1).at("gpu"), json::parse(R"({"utilization":0.97,"watts":640.0})"));
  EXPECT_EQ(live.at("experts"), json::parse(R"([{"layer":0,"load":[1.0,1.0]},{"layer":1,"load":[1.0,0.0]}])"));
}

// The ranks' own clocks may say what they like: what all of them are told counts. Rank 1 would wait for ever if it
// decided otherwise than rank 0.
TEST(LiveFile, RanksMeetOnlyWhenItIsWritten) {
  const TempFolder folder;
  testing::run_ranks(2, [&](const Rank& r) {
    int64_t gathers = 0;
    LiveFileCallback::Settings settings;
    settings.folder = folder.path();
    settings.peak_bytes = [&] { return ++gathers; };
    LiveFileCallback callback(r.world.world(), settings);
    SomeRun run;
    run.state.is_world_process_zero = r.rank == 0;
    const std::vector<std::pair<double, int64_t>> steps{{10.0, 1}, {10.5, 1}, {11.9, 1}, {12.1, 2}, {14.0, 2}, {20, 3}};
    for (const auto& [clock, expected] : steps) {
      ++run.state.global_step;
      run.clock_seconds = clock;
      run.tell(callback, &TrainerCallback::on_step_begin);
      run.tell(callback, &TrainerCallback::on_step_end);
      run.log(callback, {{"loss", 1}});
      EXPECT_EQ(gathers, expected) << "at " << clock << " s";
    }
    run.end(callback);
    EXPECT_EQ(gathers, 3) << "the last step has been told";
  });
  EXPECT_EQ(json::parse(text_of_file(folder / "live.json")).at("step"), 6);
}

TEST(LiveFile, ModelsWithoutExpertsHaveNone) {
  const TempFolder folder;
  testing::run_ranks(1, [&](const Rank& r) {
    LiveFileCallback callback(r.world.world(), {.folder = folder.path()});
    SomeRun run;
    run.tell(callback, &TrainerCallback::on_step_begin);
    run.tell(callback, &TrainerCallback::on_step_end);
    run.log(callback, {{"loss", 1}});
  });
  EXPECT_FALSE(json::parse(text_of_file(folder / "live.json")).contains("experts"));
}

}  // namespace
}  // namespace megalith::observe
