// The output of a child process: read without blocking, split into lines, forwarded with a prefix or to a file.
#pragma once

#include <deque>
#include <string>

namespace megalith::comm {

// One stream (stdout or stderr) of one rank.
class ChildOutput {
 public:
  // Lines go to the descriptor `target`, each after `prefix`. Takes ownership of `source`.
  ChildOutput(int source, int target, std::string prefix);
  ~ChildOutput();
  ChildOutput(ChildOutput&& other) noexcept;
  ChildOutput& operator=(ChildOutput&&) = delete;

  // The descriptor to poll, -1 at the end of the stream.
  int source() const { return source_; }
  bool at_end() const { return source_ < 0; }
  // Reads what is available and forwards whole lines; at the end of the stream, also the rest.
  void pump();
  // From now on lines are counted instead of forwarded.
  void mute() { muted_ = true; }
  // Forwards lines again, and forgets how many were not.
  void unmute() { muted_ = false, muted_lines_ = 0; }
  size_t muted_lines() const { return muted_lines_; }
  // Returns the newest lines, muted ones included, for a report.
  const std::deque<std::string>& last_lines() const { return last_; }

 private:
  void emit(const std::string& line);  // forwards or counts one line, and keeps it for last_lines()

  int source_;
  const int target_;
  const std::string prefix_;
  std::string partial_;
  std::deque<std::string> last_;
  bool muted_ = false;
  size_t muted_lines_ = 0;
};

}  // namespace megalith::comm
