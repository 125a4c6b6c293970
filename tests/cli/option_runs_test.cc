// Options whose effect only whole runs of `megalith train` show: files, evaluations, and ranks that come late. The
// effects test (tests/effects) names these tests.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Words = std::vector<std::string>;
using std::chrono::seconds;

class OptionRuns : public ::testing::Test {
 protected:
  OptionRuns() {
    std::ofstream data(folder_ / "data.jsonl");
    for (int i = 0; i < 16; ++i) {
      const json ids{i + 2, i + 3, i + 4, i + 5};
      data << json{{"input_ids", ids}, {"labels", ids}}.dump() << "\n";
    }
  }

  Words words(const Words& more) const {
    Words all{MEGALITH_PROGRAM,
              "train",
              "--finetuning_type=full",
              "--use_cpu",
              "--model_name_or_path=" + (golden_dir() / "hf" / "llama").string(),
              "--dataset=" + (folder_ / "data.jsonl").string(),
              "--output_dir=" + (folder_ / "out").string(),
              "--per_device_train_batch_size=2",
              "--max_steps=2",
              "--val_size=4",
              "--logging_steps=1",
              "--save_strategy=no",
              "--overwrite_output_dir=true"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::map<std::string, std::string> environment() const { return {{"XDG_CACHE_HOME", (folder_ / "cache").string()}}; }

  // Runs to the end, and returns what it said.
  std::string run(const Words& more) {
    fs::remove_all(folder_ / "out");
    const auto result = run_process(words(more), environment());
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.err;
  }
  static bool has_events(const fs::path& folder) {
    if (!fs::is_directory(folder)) return false;
    const fs::directory_iterator files(folder);
    return std::ranges::any_of(
        files, [](const auto& file) { return file.path().filename().string().find("tfevents") != std::string::npos; });
  }

  // Starts two ranks and stops one of them until the other complains, or for the given time; then waits for the end.
  ProcessResult run_with_a_late_rank(const Words& more, seconds stopped) const {
    Words all = words({"--nproc=2", "--max_steps=2000", "--num_train_epochs=2000"});
    all.insert(all.end(), more.begin(), more.end());
    Subprocess job(all, environment());
    // On a busy machine a rank may be a second late by itself, before that.
    const bool runs = job.wait_for_text("step 3/", seconds(50));
    const auto ranks = children_of(job.pid());
    if (runs && ranks.size() == 2) {
      ::kill(ranks[1], SIGSTOP);
      job.wait_for_text("did not finish within", stopped);
      ::kill(ranks[1], SIGCONT);
    }
    if (job.running()) job.signal(SIGTERM);  // a run that has got over it finishes its step, saves and leaves
    return job.finish(seconds(50));
  }

  TempFolder folder_;
};

TEST_F(OptionRuns, DoTrainAndDoEvalChooseTheWork) {
  for (const auto& [trains, evaluates] : {std::pair(true, false), {false, true}, {true, true}}) {
    SCOPED_TRACE(trains ? (evaluates ? "both" : "do_train") : "do_eval");
    Words task;
    if (trains) task.emplace_back("--do_train");
    if (evaluates) task.emplace_back("--do_eval");
    const std::string said = run(task);
    EXPECT_EQ(said.find("step 2/2") != std::string::npos, trains) << said;
    EXPECT_EQ(said.find("evaluation at step") != std::string::npos, evaluates) << said;
    EXPECT_EQ(fs::exists(folder_ / "out" / "model.safetensors"), trains);
  }
}

TEST_F(OptionRuns, ReportToAndLoggingDirPlaceTensorBoardsFiles) {
  run({});
  EXPECT_FALSE(has_events(folder_ / "out" / "tensorboard"));
  run({"--report_to=tensorboard"});
  EXPECT_TRUE(has_events(folder_ / "out" / "tensorboard"));
  run({"--report_to=tensorboard", "--logging_dir=" + (folder_ / "board").string()});
  EXPECT_FALSE(has_events(folder_ / "out" / "tensorboard"));
  EXPECT_TRUE(has_events(folder_ / "board"));
}

// A rank that stands still for seconds is too late for a limit of one, and not for one of minutes, which wins.
TEST_F(OptionRuns, TimeoutsDecideHowLongARankMayBeLate) {
  const auto late = run_with_a_late_rank({"--ddp_timeout=1"}, seconds(50));
  EXPECT_NE(late.exit_code, 0);
  expect_contains(late.err, "did not finish within 1 s");
  const auto in_time = run_with_a_late_rank({"--ddp_timeout=1", "--distributed_timeout_minutes=5"}, seconds(3));
  EXPECT_EQ(in_time.exit_code, 0) << in_time.err;
}

}  // namespace
}  // namespace megalith::testing
