// Real child processes: what they print, how they end, and whether they leave anything behind.
#pragma once

#include <chrono>
#include <csignal>
#include <map>
#include <string>
#include <vector>

namespace megalith::testing {

// How a process ended, and what it printed.
struct ProcessResult {
  int exit_code = -1;  // 128 + signal when a signal ended it
  std::string out, err;
  double seconds = 0;
  bool timed_out = false;
  // Processes that carried this run's mark and were still alive after it ended (they are killed).
  int left_behind = 0;
};

// A running child. Its environment is this process's with `env` on top (an empty value unsets) and without launcher
// variables.
class Subprocess {
 public:
  Subprocess(const std::vector<std::string>& command, const std::map<std::string, std::string>& env = {});
  ~Subprocess();
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Reads what has been printed so far; false once the child has ended. finish() tells how.
  bool running();
  // Returns all that running(), wait_for_text() and finish() have read so far.
  const ProcessResult& so_far() const { return result_; }
  // Reads both streams until one holds `text`; false when the child ends or `limit` passes first.
  bool wait_for_text(const std::string& text, std::chrono::milliseconds limit);
  // Reads to the end. After `limit` everything is killed and `timed_out` is set.
  ProcessResult finish(std::chrono::milliseconds limit);

 private:
  bool pump(std::chrono::milliseconds time);  // false: both streams are at their end

  pid_t pid_ = -1;
  int out_fd_ = -1, err_fd_ = -1;
  std::string mark_;  // in the environment of the child and all its descendants
  ProcessResult result_;
  std::chrono::steady_clock::time_point started_;
};

// Starts a program and waits for its end; after `limit` it is killed.
ProcessResult run_process(const std::vector<std::string>& command, const std::map<std::string, std::string>& env = {},
                          std::chrono::milliseconds limit = std::chrono::seconds(60));

// The processes that a process has started and that still exist, oldest first.
std::vector<pid_t> children_of(pid_t pid);

}  // namespace megalith::testing
