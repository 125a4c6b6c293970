// TaskProgress: tells people how far a task is that may take long: loading, saving, tokenizing, converting, planning.
//
//   TaskProgress progress("loading weights", TaskProgress::Unit::kBytes, total_bytes);
//   for (…) progress.add(tensor_bytes);                                // from any thread
//
//   loading weights: 1.2 of 4.7 GiB (25 %), 0:00:12 left
//
// Nothing is written in the first two seconds. Then a line stays at the bottom of a terminal (base/log.h:
// write_to_stderr) and disappears with the object. Where stderr is not a terminal, a log line is written every ten
// seconds. With --quiet, or at a log level above info, nothing is written.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace megalith {

// One task, shown by one thread of its own, so that the line also moves while the task waits. Create and destroy it on
// the same thread; show one task at a time in a process. A process that forks must not do so while one exists.
class TaskProgress {
 public:
  // How amounts are written; kCount is followed by the name of what is counted.
  enum class Unit { kBytes, kCount };

  // `total` 0 means that it is unknown: then the time that has passed is shown in place of the time left. `counted`
  // names the things of kCount: "records". `shown` false makes an object without effect, for ranks that stay silent.
  TaskProgress(std::string what, Unit unit, int64_t total, std::string counted = "", bool shown = true);
  // Shows only how long it takes: "connecting 8 ranks: 0:00:05".
  explicit TaskProgress(std::string what, bool shown = true);
  ~TaskProgress();
  TaskProgress(const TaskProgress&) = delete;
  TaskProgress& operator=(const TaskProgress&) = delete;

  void add(int64_t amount) { done_.fetch_add(amount, std::memory_order_relaxed); }
  // Sets what has been done so far, for tasks that count themselves.
  void set(int64_t done) { done_.store(done, std::memory_order_relaxed); }
  // Ends the line with a remark: "…, missing: ranks 3 and 5". Empty removes it.
  void remark(std::string text);
  // Runs `write` while the line is erased: whole lines that it writes to stdout stand alone, also if that is the same
  // terminal. The line is drawn again afterwards.
  void without_line(const std::function<void()>& write);

  // When lines appear. Tests make them appear earlier, by MEGALITH_PROGRESS_MS: milliseconds for each of the first two.
  // With 0 every task writes a line, however short it is.
  struct Times {
    std::chrono::milliseconds silence{2000};         // before the first line
    std::chrono::milliseconds between_plain{10000};  // log lines where there is no terminal
    std::chrono::milliseconds between_live{200};     // drawings of a live line
    std::chrono::milliseconds shortest_pause{10};    // for between_plain
    static Times from_environment();
  };

 private:
  using Clock = std::chrono::steady_clock;
  void show_until_stopped();
  std::string line(double seconds) const;  // called with mutex_ held

  const std::string what_;
  const Unit unit_;
  const int64_t total_;
  const std::string counted_;
  const Clock::time_point start_ = Clock::now();
  std::atomic<int64_t> done_ = 0;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;   // ends the thread; guarded by mutex_
  bool drawn_ = false;  // a live line is on the terminal; guarded by mutex_
  std::string remark_;  // guarded by mutex_
  std::thread shower_;  // not started for a task that is not shown
};

// Returns the text of a line: "converting: 12 of 40 tensors (30 %), 0:00:07 left". Separate for tests.
std::string task_progress_line(const std::string& what, TaskProgress::Unit unit, int64_t done, int64_t total,
                               const std::string& counted, double seconds);

}  // namespace megalith
