// Non-persistent checkpoints on the machines' own disks: a rank's folder stands for the disk of its machine.
#include <gtest/gtest.h>

#include "megalith/io/file_io.h"
#include "megalith/train/local_saves.h"
#include "tests/run/rolling_run.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

// A run that saves at step 4 and, locally, at 2 and 6; it fails in the seventh step.
class LocalSavesTest : public ::testing::Test {
 protected:
  LocalSavesTest() = default;

  Words local(const Words& more) const {
    Words words{"--non-persistent-ckpt-type=local", "--non-persistent-local-ckpt-dir=" + disks_.path().string()};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // Returns the losses of a run of eight steps that nothing disturbs.
  std::vector<double> undisturbed() const {
    Words words = layout_;
    words.emplace_back("--train-iters=8");
    return run_rolling(words, ranks_).losses;
  }
  void fail_in_step_seven() const {
    Words words = local({"--save=" + run_.path().string(), "--save-interval=4", "--non-persistent-save-interval=2",
                         "--train-iters=7", "--exit-interval=7"});
    words.insert(words.end(), layout_.begin(), layout_.end());
    log_ = run_rolling(words, ranks_).log;
    fs::remove_all(run_ / "checkpoint-7");
    checkpoint::write_tracker(run_ / "checkpoint-4");
  }
  // Runs to step eight from what is left.
  RollingRun go_on() const {
    Words words = local({"--load=" + run_.path().string(), "--train-iters=8"});
    words.insert(words.end(), layout_.begin(), layout_.end());
    return run_rolling(words, ranks_);
  }
  void expect_same_after_failure() const {
    const std::vector<double> whole = undisturbed();
    fail_in_step_seven();
    const RollingRun rest = go_on();
    EXPECT_EQ(rest.losses, whole);
    expect_contains(rest.log, "continuing from the local save of step 6");
  }
  fs::path disk(int rank) const { return disks_ / ("rank-0000" + std::to_string(rank)); }
  fs::path part(int of, int on) const {
    return disk(on) / "checkpoint-6" / ("part-rank-0000" + std::to_string(of) + ".safetensors");
  }
  static void damage(const fs::path& file) {
    const std::string content = io::read_text_file(file, 1 << 26);
    io::write_text_file(file, content.substr(0, content.size() - 1) + static_cast<char>(content.back() ^ 1));
  }

  const TempFolder run_, disks_;
  int ranks_ = 1;
  Words layout_;
  mutable std::string log_;  // messages of the failed run
};

TEST_F(LocalSavesTest, ARunContinuesBitForBit) { expect_same_after_failure(); }

TEST_F(LocalSavesTest, ATensorParallelRunToo) {
  ranks_ = 2;
  layout_ = {"--tensor-model-parallel-size=2"};
  expect_same_after_failure();
}

TEST_F(LocalSavesTest, AndPipelinesWithAShardedOptimizerIn16Bits) {
  ranks_ = 4;
  layout_ = {"--pipeline-model-parallel-size=2", "--use-distributed-optimizer", "--bf16"};
  expect_same_after_failure();
}

TEST_F(LocalSavesTest, AndWeightsThatAreKeptInFp8) {
  ranks_ = 2;
  layout_ = {"--use-distributed-optimizer", "--bf16", "--fp8-format=hybrid", "--fp8-param-gather"};
  expect_same_after_failure();
}

TEST_F(LocalSavesTest, KeepsTheNewestOfEachRank) {
  ranks_ = 2;
  fail_in_step_seven();
  for (const int rank : {0, 1}) EXPECT_EQ(steps_in(disk(rank)), (std::vector<int64_t>{6}));
  EXPECT_TRUE(fs::exists(part(1, 1)));
  EXPECT_FALSE(fs::exists(part(0, 1))) << "a copy that nobody asked for";
}

TEST_F(LocalSavesTest, ALostDiskIsReplacedByCopies) {
  ranks_ = 4;
  layout_ = {"--tensor-model-parallel-size=2", "--use-distributed-optimizer", "--replication", "--replication-jump=2"};
  const std::vector<double> whole = run_rolling({"--tensor-model-parallel-size=2", "--train-iters=8"}, ranks_).losses;
  fail_in_step_seven();
  EXPECT_TRUE(fs::exists(part(3, 1)));
  EXPECT_TRUE(fs::exists(part(1, 3)));
  fs::remove_all(disk(0));  // a machine with ranks 0 and 1 is replaced by an empty one
  fs::remove_all(disk(1));
  const RollingRun rest = go_on();
  EXPECT_EQ(rest.losses, whole);
  expect_contains(rest.log, "step 6; 2 of 4 ranks got their part from another rank");
}

TEST_F(LocalSavesTest, ADamagedPartIsReplacedByItsCopy) {
  ranks_ = 2;
  layout_ = {"--tensor-model-parallel-size=2", "--replication", "--replication-jump=1"};
  fail_in_step_seven();
  damage(part(1, 1));
  const RollingRun rest = go_on();
  expect_contains(rest.log, "were changed: their checksum is");
  expect_contains(rest.log, "step 6; 1 of 2 ranks got their part from another rank");
}

TEST_F(LocalSavesTest, WithoutACopyTheCheckpointOfTheRunIsTaken) {
  ranks_ = 2;
  layout_ = {"--tensor-model-parallel-size=2"};
  const std::vector<double> whole = undisturbed();
  fail_in_step_seven();
  fs::remove_all(disk(1));
  const RollingRun rest = go_on();
  expect_contains(rest.log, "the local save of step 6 is not complete");
  EXPECT_EQ(rest.losses, whole);
}

TEST_F(LocalSavesTest, IsNotUsedIfItIsOlderOrFromAnotherLayout) {
  ranks_ = 2;
  fail_in_step_seven();
  layout_ = {"--tensor-model-parallel-size=2"};
  expect_contains(go_on().log, "was written by 2 ranks");
  layout_ = {};
  run_rolling(
      {"--load=" + run_.path().string(), "--save=" + run_.path().string(), "--save-interval=4", "--train-iters=7"},
      ranks_);
  expect_contains(go_on().log, "the local save of step 6 is older than the checkpoint of step 7");
}

TEST_F(LocalSavesTest, ANewRunForgetsThoseOfAnotherOne) {
  fail_in_step_seven();
  run_rolling(local({"--train-iters=1"}));
  EXPECT_TRUE(steps_in(disk(0)).empty());
}

TEST_F(LocalSavesTest, ADiskThatCannotBeWrittenCostsTheSaveOnly) {
  ranks_ = 2;
  io::write_text_file(disk(1), "a file where a folder should be");
  fail_in_step_seven();
  expect_contains(log_, "the local save of step 2 failed. rank 1:");
  expect_contains(log_, "training continues without it");
  EXPECT_TRUE(steps_in(disk(0)).empty()) << "a save that is not complete";
}

TEST(RanksWithCopies, AreJumpApart) {
  EXPECT_EQ(train::ranks_with_copies(0, 2, 8), (std::vector<int>{0, 8}));
  EXPECT_EQ(train::ranks_with_copies(9, 2, 8), (std::vector<int>{1, 9}));
  EXPECT_EQ(train::ranks_with_copies(27, 2, 8), (std::vector<int>{19, 27}));
  EXPECT_EQ(train::ranks_with_copies(5, 3, 2), (std::vector<int>{1, 3, 5}));
}

}  // namespace
}  // namespace megalith::testing
