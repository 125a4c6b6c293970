#include "megalith/observe/observers.h"

#include <gtest/gtest.h>

#include "megalith/config/parser.h"
#include "tests/observe/some_run.h"

namespace megalith::observe {
namespace {

using testing::TempFolder;

TEST(RunFiles, ArgumentsAndStateReadBack) {
  const TempFolder folder;
  SomeRun run;
  run.args.logging.steps = 7;
  RunFilesCallback callback(folder / "out");
  run.begin(callback);
  const std::vector<std::string> words{(folder / "out" / "args.yaml").string()};
  EXPECT_EQ(config::parse_arguments(run.args.dialect, words).args, run.args);
  run.state.global_step = 12;
  run.state.log_history = {{{"loss", 1.5}, {"step", 10}}};
  run.end(callback);
  EXPECT_EQ(train::TrainerState::load(folder / "out" / "trainer_state.json"), run.state);
}

TEST(RunFiles, OtherRanksWriteNothing) {
  const TempFolder folder;
  SomeRun run;
  run.state.is_world_process_zero = false;
  RunFilesCallback callback(folder / "out");
  run.begin(callback);
  run.end(callback);
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

}  // namespace
}  // namespace megalith::observe
