#include "megalith/base/task_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "megalith/base/env.h"
#include "megalith/base/log.h"
#include "megalith/base/terminal.h"
#include "megalith/base/text.h"
#include "megalith/base/units.h"

namespace megalith {

namespace {

constexpr std::string_view kEraseLine = "\r\x1b[2K";  // carriage return, then ANSI "erase line"

}  // namespace

TaskProgress::Times TaskProgress::Times::from_environment() {
  Times times;
  const auto given = env_string("MEGALITH_PROGRESS_MS");
  if (const auto milliseconds = given ? parse_int(*given) : std::nullopt)
    times.silence = times.between_plain = std::chrono::milliseconds(std::max<int64_t>(*milliseconds, 0));
  times.between_plain = std::max(times.between_plain, times.shortest_pause);
  return times;
}

TaskProgress::TaskProgress(std::string what, Unit unit, int64_t total, std::string counted, bool shown)
    : what_(std::move(what)), unit_(unit), total_(total), counted_(std::move(counted)) {
  if (shown && is_shown(LogLevel::kInfo)) shower_ = std::thread([this] { show_until_stopped(); });
}

TaskProgress::TaskProgress(std::string what, bool shown) : TaskProgress(std::move(what), Unit::kCount, 0, "", shown) {}

TaskProgress::~TaskProgress() {
  if (!shower_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  shower_.join();
}

std::string TaskProgress::line(double seconds) const {
  std::string text = task_progress_line(what_, unit_, done_.load(std::memory_order_relaxed), total_, counted_, seconds);
  if (!remark_.empty()) text += ", " + remark_;
  return text;
}

void TaskProgress::remark(std::string text) {
  const std::lock_guard lock(mutex_);
  remark_ = std::move(text);
}

// The thread draws only while it holds the mutex.
void TaskProgress::without_line(const std::function<void()>& write) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(drawn_, false)) write_to_stderr(kEraseLine);
  write();
}

// The thread ends with the line erased, so that what follows does not begin after it.
void TaskProgress::show_until_stopped() {
  const Times times = Times::from_environment();
  const bool terminal = stderr_is_terminal();
  const auto seconds = [this] { return std::chrono::duration<double>(Clock::now() - start_).count(); };
  std::unique_lock lock(mutex_);
  const auto stopped_within = [&](std::chrono::milliseconds time) {
    return stopped_.wait_for(lock, time, [this] { return stop_; });
  };
  const auto silence = times.silence.count() == 0 || terminal ? times.silence : times.between_plain;
  if (silence.count() > 0 && stopped_within(silence)) return;
  if (!terminal) {
    do log_info("{}", line(seconds()));
    while (!stopped_within(times.between_plain));
    return;
  }
  // A line that wraps could not be erased. One column stays free, since some terminals wrap when the last is written.
  const auto fitting = [&](const std::string& text) {
    const int columns = terminal_columns();
    return columns > 1 ? text.substr(0, static_cast<size_t>(columns - 1)) : text;
  };
  do {
    write_to_stderr(std::string(kEraseLine) + fitting(line(seconds())));
    drawn_ = true;
  } while (!stopped_within(times.between_live));
  write_to_stderr(kEraseLine);
}

std::string task_progress_line(const std::string& what, TaskProgress::Unit unit, int64_t done, int64_t total,
                               const std::string& counted, double seconds) {
  const bool bytes = unit == TaskProgress::Unit::kBytes;
  const std::string name = counted.empty() || bytes ? "" : " " + counted;
  const auto amount = [&](int64_t value) {
    return bytes ? bytes_text(static_cast<double>(value)) : fmt::format("{}", value);
  };
  if (total <= 0 && done <= 0) return fmt::format("{}: {}", what, duration_text(seconds));
  if (total <= 0) return fmt::format("{}: {}{}, {}", what, amount(done), name, duration_text(seconds));
  const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
  const std::string left = share > 0 ? fmt::format(", {} left", duration_text(seconds * (1 - share) / share)) : "";
  return fmt::format("{}: {} of {}{} ({:.0f} %){}", what, amount(done), amount(total), name, 100 * share, left);
}

}  // namespace megalith
