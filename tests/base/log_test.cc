// Lines on stderr, and a live line that stays below them.
#include "megalith/base/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <regex>
#include <sstream>

#include "megalith/base/log_receiver.h"
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
  // The live line is erased before the log line and drawn again after it; an ended line is left alone.
  const std::string erase = kErase;
  EXPECT_EQ(text,
            erase + "step 1" + erase + "step 2" + erase + "saved\n" + erase + "step 2" + erase + "step 3\n" + "done\n");
}

// Only what is not a remark says what it is.
TEST(Log, LinesOnStderrArePlain) {
  const std::string text = on_stderr([] {
    log_info("saved");
    log_warning("the disk is nearly full");
    log_text(LogLevel::kError, "the disk is full");
    set_log_level("debug");
    log_text(LogLevel::kDebug, "2 threads");
    set_log_level("info");
  });
  EXPECT_EQ(text, "saved\nwarning: the disk is nearly full\nerror: the disk is full\ndebug: 2 threads\n");
}

// Lines of a file stand for themselves: with time, rank and level. --quiet is a matter of the terminal.
TEST(Log, AReceiverGetsWholeLinesInPlaceOfStderr) {
  std::vector<std::pair<LogLevel, std::string>> lines;
  const std::string text = on_stderr([&] {
    set_log_receiver([&](LogLevel level, std::string_view line) {
      lines.emplace_back(level, line);
      if (line == "first") log_info("from the receiver");  // holds no lock
    });
    log_info("first");
    log_warning("the disk is nearly full");
    log_text(LogLevel::kDebug, "below the level");
    write_to_stderr(std::string(kErase) + "step 1");
    write_to_stderr(std::string(kErase) + "step 2\nmodel\n");
    quiet_stderr();
    log_info("quiet");
    quiet_stderr(false);
    set_log_receiver(nullptr);
    log_info("on stderr again");
  });
  EXPECT_EQ(text, "on stderr again\n");
  const std::vector<std::pair<LogLevel, std::string>> expected = {{LogLevel::kInfo, "first"},
                                                                  {LogLevel::kInfo, "from the receiver"},
                                                                  {LogLevel::kWarning, "the disk is nearly full"},
                                                                  {LogLevel::kInfo, "step 2"},
                                                                  {LogLevel::kInfo, "model"}};
  EXPECT_EQ(lines, expected);
}

TEST(Log, FilesHoldEverythingWithTimeRankAndLevel) {
  const testing::TempFolder folder;
  add_log_file(folder / "rank-3.log");
  const std::string text = on_stderr([] {
    quiet_stderr();
    EXPECT_FALSE(is_shown(LogLevel::kInfo));
    EXPECT_TRUE(is_logged(LogLevel::kInfo));
    log_info("saved");
    log_warning("slow");
    quiet_stderr(false);
    EXPECT_TRUE(is_shown(LogLevel::kInfo));
    log_to_file("done  2 steps\nloss  3\n");
    log_to_file("broken", LogLevel::kError);
  });
  EXPECT_EQ(text, "warning: slow\n");
  std::ifstream file(folder / "rank-3.log");
  const std::string time = R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} rank-3 )";
  for (const char* expected :
       {"info: saved", "warning: slow", "info: done  2 steps", "info: loss  3", "error: broken"}) {
    std::string line;
    ASSERT_TRUE(std::getline(file, line)) << expected;
    EXPECT_TRUE(std::regex_match(line, std::regex(time + expected))) << line;
  }
}

}  // namespace
}  // namespace megalith
