#include "megalith/observe/observers.h"

#include <gtest/gtest.h>

#include "tests/observe/some_run.h"

namespace megalith::observe {
namespace {

using testing::TempFolder;

TEST(RunFiles, ArgumentsAndStateReadBack) {
  const TempFolder folder;
  SomeRun run;
  RunFilesCallback callback(folder / "out", "logging_steps: 7\n");
  run.begin(callback);
  EXPECT_EQ(text_of_file(folder / "out" / "args.yaml"), "logging_steps: 7\n");
  run.state.global_step = 12;
  run.state.log_history = {{{"loss", 1.5}, {"step", 10}}};
  run.end(callback);
  EXPECT_EQ(train::TrainerState::load(folder / "out" / "trainer_state.json"), run.state);
}

TEST(RunFiles, OtherRanksWriteNothing) {
  const TempFolder folder;
  SomeRun run;
  run.state.is_world_process_zero = false;
  RunFilesCallback callback(folder / "out", "");
  run.begin(callback);
  run.end(callback);
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

}  // namespace
}  // namespace megalith::observe
