// Non-persistent checkpoints of pretrain: when they are written, which stay, and what a run continues from.
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/checkpoint/run_folder.h"
#include "megalith/io/file_io.h"
#include "megalith/run/resolve/load.h"
#include "tests/run/rolling_run.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

// A run of seven steps that saves at 4 and, in a rolling folder, at 2 and 6.
class RollingSaves : public ::testing::Test {
 protected:
  Words saving() const {
    return {"--save=" + run_.path().string(), "--save-interval=4", "--non-persistent-save-interval=2",
            "--non-persistent-ckpt-type=global"};
  }
  Words loading() const { return {"--load=" + run_.path().string(), "--non-persistent-ckpt-type=global"}; }
  static Words also(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  fs::path rolling() const { return run_ / "non_persistent"; }

  const TempFolder run_;
};

TEST_F(RollingSaves, KeepsTheNewestAndSkipsStepsThatAreSavedAnyway) {
  for (const char* background : {"--no-async", "--async-save"}) {
    SCOPED_TRACE(background);
    Words words = also(saving(), {"--train-iters=7"});
    if (std::string(background) == "--async-save") words.emplace_back(background);
    EXPECT_EQ(run_rolling(words).steps, 7);
    EXPECT_EQ(steps_in(run_.path()), (std::vector<int64_t>{4, 7}));
    EXPECT_EQ(steps_in(rolling()), (std::vector<int64_t>{6}));
    EXPECT_EQ(checkpoint::read_tracker(run_.path())->filename(), "checkpoint-7");
    EXPECT_EQ(checkpoint::read_tracker(rolling())->filename(), "checkpoint-6");
    fs::remove_all(run_.path());
  }
}

TEST_F(RollingSaves, ARunContinuesFromTheNewestOfBoth) {
  for (const auto& [ranks, layout] : {std::pair(1, Words{}), std::pair(2, Words{"--tensor-model-parallel-size=2"})}) {
    const RollingRun whole = run_rolling(also(layout, {"--train-iters=8"}), ranks);
    run_rolling(also(also(saving(), layout), {"--train-iters=7", "--exit-interval=7"}), ranks);
    fs::remove_all(run_ / "checkpoint-7");  // a failure in the seventh step
    checkpoint::write_tracker(run_ / "checkpoint-4");
    const RollingRun continued = run_rolling(also(also(loading(), layout), {"--train-iters=8"}), ranks);
    EXPECT_EQ(continued.losses, whole.losses);  // lines 1 to 6 are in the checkpoint
    EXPECT_EQ(continued.steps, 8);
    fs::remove_all(run_.path());
  }
}

TEST_F(RollingSaves, TheChoiceIsByStep) {
  run_rolling(also(saving(), {"--train-iters=7"}));
  const fs::path six = rolling() / "checkpoint-6";
  run::LoadSettings settings{.folder = run_.path(), .pretrained = {}, .step = {}, .counts_from = {}};
  EXPECT_EQ(run::find_load(settings).folder, run_ / "checkpoint-7");
  settings.rolling = rolling();
  EXPECT_EQ(run::find_load(settings).folder, run_ / "checkpoint-7");  // 6 is older
  ::testing::internal::CaptureStderr();
  run::find_load(settings, /*logs=*/true);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("checkpoint-6 is older than"), std::string::npos);
  fs::remove_all(run_ / "checkpoint-7");
  checkpoint::write_tracker(run_ / "checkpoint-4");
  EXPECT_EQ(run::find_load(settings).folder, six);
  EXPECT_EQ(run::find_load(settings).fallback, run_ / "checkpoint-4");
  // A tie goes to the non-persistent one, and a step that is asked for is taken.
  fs::copy(six, run_ / "checkpoint-6", fs::copy_options::recursive);
  checkpoint::write_tracker(run_ / "checkpoint-6");
  EXPECT_EQ(run::find_load(settings).folder, six);
  settings.step = 4;
  EXPECT_EQ(run::find_load(settings).folder, run_ / "checkpoint-4");
  // Without any checkpoint of the run itself.
  settings.step.reset();
  fs::remove_all(run_ / "checkpoint-4");
  fs::remove_all(run_ / "checkpoint-6");
  fs::remove(run_ / checkpoint::kTrackerName);
  settings.must_exist = true;
  EXPECT_EQ(run::find_load(settings).folder, six);
}

TEST_F(RollingSaves, ADamagedOneIsPassedOver) {
  run_rolling(also(saving(), {"--train-iters=7", "--exit-interval=7"}));
  fs::remove_all(run_ / "checkpoint-7");
  checkpoint::write_tracker(run_ / "checkpoint-4");
  const fs::path file = rolling() / "checkpoint-6" / "optimizer.safetensors";
  // Another byte at the end: only its checksum tells.
  const std::string content = io::read_text_file(file, 1 << 26);
  io::write_text_file(file, content.substr(0, content.size() - 1) + static_cast<char>(content.back() ^ 1));
  const RollingRun changed = run_rolling(also(loading(), {"--train-iters=5"}));
  EXPECT_EQ(changed.steps, 5);
  EXPECT_NE(changed.log.find("checkpoint-6 is broken"), std::string::npos) << changed.log;
  EXPECT_NE(changed.log.find("the run continues from " + (run_ / "checkpoint-4").string()), std::string::npos);
  // A file that was cut off is seen before ranks verify.
  fs::resize_file(file, content.size() / 2);
  const RollingRun cut = run_rolling(also(loading(), {"--train-iters=5"}));
  EXPECT_EQ(cut.steps, 5);
  EXPECT_NE(cut.log.find("this non-persistent checkpoint is not used"), std::string::npos) << cut.log;
}

TEST_F(RollingSaves, TheyMayLieElsewhere) {
  const TempFolder fast;
  const std::string word = "--non-persistent-global-ckpt-dir=" + (fast / "rolling").string();
  run_rolling(also(saving(), {"--train-iters=7", "--exit-interval=7", word}));
  EXPECT_EQ(steps_in(fast / "rolling"), (std::vector<int64_t>{6}));
  EXPECT_FALSE(fs::exists(rolling()));
  fs::remove_all(run_ / "checkpoint-7");
  checkpoint::write_tracker(run_ / "checkpoint-4");
  EXPECT_NE(run_rolling(also(loading(), {"--train-iters=7", word})).log.find("rolling/checkpoint-6"),
            std::string::npos);
}

}  // namespace
}  // namespace megalith::testing
