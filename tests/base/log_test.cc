// Lines on stderr, and a live line that stays below them.
#include "megalith/base/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>

#include "tests/support/temp_folder.h"

namespace megalith {
namespace {

// Returns what a function writes to this process's stderr.
std::string on_stderr(const std::function<void()>& run) {
  const testing::TempFolder folder;
  std::fflush(stderr);
  const int before = ::dup(STDERR_FILENO);
  std::FILE* file = std::fopen((folder / "stderr").c_str(), "w");
  ::dup2(::fileno(file), STDERR_FILENO);
  run();
  std::fflush(stderr);
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  std::fclose(file);
  std::ostringstream text;
  text << std::ifstream(folder / "stderr").rdbuf();
  return text.str();
}

constexpr const char* kErase = "\r\x1b[2K";

TEST(Log, LinesAppearAboveALiveLine) {
  const std::string text = on_stderr([] {
    write_to_stderr(std::string(kErase) + "step 1");
    write_to_stderr(std::string(kErase) + "step 2");
    log_info("saved");
    write_to_stderr(std::string(kErase) + "step 3\n");
    log_info("done");
  });
  const size_t saved = text.find("info: saved\n"), done = text.find("info: done\n");
  ASSERT_NE(saved, std::string::npos) << text;
  ASSERT_NE(done, std::string::npos) << text;
  const std::string before = text.substr(0, saved), after = text.substr(saved + 12, done - saved - 12);
  // The live line is erased before the log line, whose time stands in its place, and drawn again after it.
  EXPECT_TRUE(before.starts_with(std::string(kErase) + "step 1" + kErase + "step 2" + kErase)) << before;
  EXPECT_TRUE(after.starts_with(std::string(kErase) + "step 2" + kErase + "step 3\n")) << after;
  EXPECT_EQ(after.find(kErase, after.find("step 3")), std::string::npos) << "an ended line is left alone";
}

}  // namespace
}  // namespace megalith
