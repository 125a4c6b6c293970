#include "megalith/base/task_progress.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "megalith/base/log.h"

namespace megalith {
namespace {

using Unit = TaskProgress::Unit;

TEST(TaskProgressLine, HasAmountsShareAndTimeLeft) {
  EXPECT_EQ(task_progress_line("converting", Unit::kCount, 10, 40, "tensors", 5),
            "converting: 10 of 40 tensors (25 %), 0:00:15 left");
  EXPECT_EQ(task_progress_line("loading weights", Unit::kBytes, 3 << 20, 4 << 20, "", 3),
            "loading weights: 3.0 MiB of 4.0 MiB (75 %), 0:00:01 left");
}

TEST(TaskProgressLine, LeavesOutWhatIsUnknown) {
  EXPECT_EQ(task_progress_line("connecting 8 ranks", Unit::kCount, 0, 0, "", 5), "connecting 8 ranks: 0:00:05");
  EXPECT_EQ(task_progress_line("comparing layouts", Unit::kCount, 12, 0, "layouts", 5),
            "comparing layouts: 12 layouts, 0:00:05");
  EXPECT_EQ(task_progress_line("saving", Unit::kBytes, 0, 1024, "", 5), "saving: 0 B of 1.0 KiB (0 %)");
  // More than was announced is still not more than everything.
  EXPECT_EQ(task_progress_line("saving", Unit::kCount, 5, 4, "files", 5), "saving: 5 of 4 files (100 %), 0:00:00 left");
}

// stderr of a test is a pipe or a file, so lines go to the log.
std::string shown(const std::function<void(TaskProgress&)>& work, bool is_shown = true) {
  ::testing::internal::CaptureStderr();
  {
    TaskProgress progress("counting", Unit::kCount, 100, "sheep", is_shown);
    work(progress);
  }
  return ::testing::internal::GetCapturedStderr();
}

TEST(TaskProgress, ShortTasksAreSilent) {
  ::unsetenv("MEGALITH_PROGRESS_MS");
  EXPECT_EQ(shown([](TaskProgress& progress) { progress.add(100); }), "");
}

TEST(TaskProgress, EveryTaskHasALineIfAskedFor) {
  ::setenv("MEGALITH_PROGRESS_MS", "0", 1);
  const std::string text = shown([](TaskProgress& progress) {
    progress.add(100);
    progress.remark("nearly asleep");
  });
  ::unsetenv("MEGALITH_PROGRESS_MS");
  EXPECT_NE(text.find("counting: "), std::string::npos) << text;
}

TEST(TaskProgress, LongTasksHaveLines) {
  ::setenv("MEGALITH_PROGRESS_MS", "20", 1);
  const auto work = [](TaskProgress& progress) {
    progress.add(50);
    progress.remark("two jumped back");
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  };
  EXPECT_NE(shown(work).find(" left, two jumped back\n"), std::string::npos);
  EXPECT_EQ(shown(work, /*is_shown=*/false), "");
  quiet_stderr();
  EXPECT_EQ(shown(work), "");
  quiet_stderr(false);
  ::unsetenv("MEGALITH_PROGRESS_MS");
}

}  // namespace
}  // namespace megalith
