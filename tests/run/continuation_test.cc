// The last line of a run that was asked to stop.
#include "megalith/run/continuation.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::run {
namespace {

using testing::expect_contains;
using testing::TempFolder;

// A plan whose output folder has a complete checkpoint.
class Continuation : public ::testing::Test {
 protected:
  Continuation() {
    std::filesystem::create_directories(folder_ / "out" / "checkpoint-5");
    std::ofstream(folder_ / "out" / "checkpoint-5" / "megalith.json") << "{}";
    plan_.settings.output.folder = folder_ / "out";
  }

  TempFolder folder_;
  RunPlan plan_;
};

TEST_F(Continuation, TheSameCommandContinues) {
  EXPECT_EQ(how_to_continue(plan_), "run the same command again");
  plan_.settings.resume = "Auto";
  EXPECT_EQ(how_to_continue(plan_), "run the same command again");
}

TEST_F(Continuation, WhatWouldStartElsewhereIsReplaced) {
  plan_.settings.resume = "out/checkpoint-2";
  expect_contains(how_to_continue(plan_), "with --resume_from_checkpoint auto");
  plan_.settings.output.overwrites = true;
  expect_contains(how_to_continue(plan_), "without overwrite_output_dir");
}

TEST_F(Continuation, PretrainNeedsLoad) {
  plan_.options.dialect = config::Dialect::kPretrain;
  expect_contains(how_to_continue(plan_), "--load " + (folder_ / "out").string());
  plan_.settings.pretrain.load.folder = folder_ / "out";
  EXPECT_EQ(how_to_continue(plan_), "run the same command again");
}

TEST_F(Continuation, WithoutCheckpointsThereIsNothingToContinue) {
  std::filesystem::remove_all(folder_ / "out" / "checkpoint-5");
  expect_contains(how_to_continue(plan_), "not possible");
  plan_.settings.output.folder.clear();
  expect_contains(how_to_continue(plan_), "not possible");
}

}  // namespace
}  // namespace megalith::run
