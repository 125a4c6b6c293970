// The output of a rank's process through a pipe: whole lines, each after its prefix.
#include "megalith/comm/launch/child_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <deque>
#include <string>

namespace megalith::comm {
namespace {

// A pipe whose reading end does not block.
struct Pipe {
  Pipe() {
    EXPECT_EQ(pipe(ends), 0);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  ~Pipe() { close_writer(); }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  void write_text(const std::string& text) const {
    EXPECT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // Returns what can be read now.
  std::string text() const {
    std::string result(4096, '\0');
    const ssize_t n = read(ends[0], result.data(), result.size());
    result.resize(n < 0 ? 0 : static_cast<size_t>(n));
    return result;
  }
  void close_writer() {
    if (ends[1] >= 0) close(ends[1]);
    ends[1] = -1;
  }

  int ends[2] = {-1, -1};
};

TEST(ChildOutput, ForwardsWholeLinesWithAPrefix) {
  Pipe child, terminal;
  ChildOutput output(child.ends[0], terminal.ends[1], "[3] ");
  child.write_text("one\ntw");
  output.pump();
  EXPECT_EQ(terminal.text(), "[3] one\n");  // the second line is not complete
  child.write_text("o\n");
  output.pump();
  EXPECT_EQ(terminal.text(), "[3] two\n");
  EXPECT_FALSE(output.at_end());
}

// The live line of rank 0 is on the terminal already: a line of another rank must not follow on it.
TEST(ChildOutput, LinesDoNotContinueTheLiveLineOfATerminal) {
  int leader = -1, follower = -1;
  ASSERT_EQ(openpty(&leader, &follower, nullptr, nullptr, nullptr), 0);
  Pipe rank;
  ChildOutput output(dup(rank.ends[0]), follower, "[rank 1] ");
  ASSERT_EQ(write(follower, "step 3/10", 9), 9);
  rank.write_text("hello\n");
  output.pump();
  std::string screen;  // arrives in pieces
  char buffer[256];
  while (!screen.ends_with("hello\r\n")) {
    const ssize_t n = read(leader, buffer, sizeof buffer);
    ASSERT_GT(n, 0);
    screen.append(buffer, static_cast<size_t>(n));
  }
  EXPECT_EQ(screen, "step 3/10\r\x1b[2K[rank 1] hello\r\n");
  close(leader);
  close(follower);
}

TEST(ChildOutput, TheEndOfTheStreamEndsTheLastLine) {
  Pipe child, terminal;
  ChildOutput output(child.ends[0], terminal.ends[1], "");
  child.write_text("no line break");
  child.close_writer();
  output.pump();
  EXPECT_EQ(terminal.text(), "no line break\n");
  EXPECT_TRUE(output.at_end());
}

TEST(ChildOutput, MutedLinesAreCountedAndKept) {
  Pipe child, terminal;
  ChildOutput output(child.ends[0], terminal.ends[1], "");
  child.write_text("before\n");
  output.pump();
  output.mute();
  child.write_text("a\nb\n");
  output.pump();
  EXPECT_EQ(terminal.text(), "before\n");
  EXPECT_EQ(output.muted_lines(), 2);
  EXPECT_EQ(output.last_lines(), (std::deque<std::string>{"before", "a", "b"}));
}

}  // namespace
}  // namespace megalith::comm
