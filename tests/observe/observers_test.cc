#include "megalith/observe/observers.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "megalith/observe/report_settings.h"
#include "tests/observe/some_run.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"

namespace megalith::observe {
namespace {

using testing::expect_contains;
using testing::Rank;
using testing::TempFolder;
using train::TrainerCallback;

// A run of four steps, logged at each second one, on two ranks; returns what rank 0 said.
std::string watch(const ReportSettings& settings, bool timing = false, std::optional<TraceSteps> steps = {},
                  int64_t left_out = 0) {
  std::string said;
  testing::run_ranks(2, [&](const Rank& r) {
    TraceRecorder trace;
    ObserverSetup setup;
    setup.world = r.world.world();
    setup.trace = &trace;
    setup.progress.write = [&](std::string_view text) {
      EXPECT_TRUE(r.rank == 0 || text.starts_with("profile of ")) << text;
      if (r.rank == 0) said += text;
    };
    setup.flops_per_token = 1e9;
    setup.peak_bytes = [] { return 1 << 20; };
    setup.timing = timing;
    setup.left_out_samples = left_out;
    setup.steps = steps;
    train::CallbackList list;
    for (auto& callback : make_observers(settings, setup)) list.add(std::move(callback));

    train::TrainerState state;
    train::TrainerControl control;
    state.max_steps = 4;
    state.is_world_process_zero = r.rank == 0;
    const train::TrainerSettings trained;
    train::TrainerEvent event{trained, state, control};
    list.call(&TrainerCallback::on_train_begin, event);
    while (state.global_step < state.max_steps) {
      list.call(&TrainerCallback::on_step_begin, event);
      { const auto span = trace.span({.name = "forward-backward", .level = 0}); }
      ++state.global_step;
      list.call(&TrainerCallback::on_step_end, event);
      if (state.global_step % 2 != 0) continue;
      event.metrics = {{"loss", 2.5}, {"tokens_per_second", 2000}};
      list.call(&TrainerCallback::on_log, event);
    }
    list.call(&TrainerCallback::on_train_end, event);
  });
  return said;
}

std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  if (!std::filesystem::exists(folder)) return names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

TEST(Observers, WriteWhatIsAskedFor) {
  const TempFolder folder;
  ReportSettings settings;
  settings.output_dir = folder / "plain";
  const std::string plain = watch(settings);
  EXPECT_EQ(names_in(folder / "plain"), (std::set<std::string>{"args.yaml", "events.jsonl", "live.json", "loss.svg",
                                                               "metrics.jsonl", "trainer_state.json"}));
  expect_contains(plain, "step 4/4 | loss 2.5000 | 2.0k tok/s | 1.0 TFLOP/s | 1.0 MiB | ETA 0:00:00\n");
  const std::string lines = text_of_file(folder / "plain" / "metrics.jsonl");
  EXPECT_EQ(std::regex_replace(lines, std::regex(R"re(,"time":[^}]*)re"), ""),
            R"({"step":2,"loss":2.5,"tokens_per_second":2000.0,"tflops_per_device":1.0,"memory":1048576})"
            "\n"
            R"({"step":4,"loss":2.5,"tokens_per_second":2000.0,"tflops_per_device":1.0,"memory":1048576})"
            "\n");

  settings.output_dir = folder / "all";
  settings.tensorboard_dir = folder / "all" / "tensorboard";
  const std::string all = watch(settings, true, TraceSteps{2, 3});
  EXPECT_EQ(names_in(folder / "all"),
            (std::set<std::string>{"args.yaml", "events.jsonl", "live.json", "loss.svg", "metrics.jsonl", "tensorboard",
                                   "trace.json", "trainer_state.json"}));
  expect_contains(all, "(min, max) time across ranks (ms):\n    forward-backward ...");
  const auto trace = nlohmann::json::parse(text_of_file(folder / "all" / "trace.json"));
  int spans = 0;
  for (const auto& event : trace.at("traceEvents"))
    if (event.at("ph") == "X") ++spans;
  EXPECT_EQ(spans, 4) << "two steps of two ranks";
}

TEST(Observers, LinesSayHowManySamplesWereLeftOut) {
  const TempFolder folder;
  ReportSettings settings;
  settings.output_dir = folder.path();
  watch(settings, false, {}, 7);
  const std::string lines = text_of_file(folder / "metrics.jsonl");
  expect_contains(lines, R"({"step":2,"loss":2.5,"tokens_per_second":2000.0,)");
  expect_contains(lines, R"("left_out_samples":7)");
}

TEST(Observers, OnlyTheRanksThatAreAskedAreProfiled) {
  const TempFolder folder;
  ReportSettings settings;
  settings.output_dir = folder.path();
  settings.profile = {2, 3};
  settings.profile_ranks = {1};
  watch(settings);
  EXPECT_EQ(names_in(folder / "profile"), (std::set<std::string>{"rank-1.json", "rank-1.txt"}));
}

TEST(Observers, WithoutAFolderThereIsOnlyTheProgress) {
  ReportSettings settings;
  settings.profile = {2, 2};
  expect_contains(watch(settings), "step 4/4 | loss 2.5000");
}

}  // namespace
}  // namespace megalith::observe
