// One log per process on stderr, and a copy in a file once there is one. spdlog's sinks lock for themselves (_mt), so
// lines of several threads do not mix.
#include "megalith/base/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/base/log_receiver.h"

namespace megalith {

namespace {

// from_str returns `off` for unknown names, so only the name itself can tell the two apart.
spdlog::level::level_enum level_of(std::string_view name) {
  const auto level = spdlog::level::from_str(std::string(name));
  check<ConfigError>(level != spdlog::level::off || name == "off",
                     "log level \"{}\" is unknown; it must be trace, debug, info, warn, error or off", name);
  return level;
}

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

// Returns the first word of a line on stderr. Remarks have none.
std::string_view line_beginning(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::info:
      return "";
    case spdlog::level::warn:
      return "warning: ";
    case spdlog::level::err:
    case spdlog::level::critical:
      return "error: ";
    default:
      return "debug: ";
  }
}

constexpr std::string_view kAnsiErase = "\x1b[2K";  // ANSI, after a carriage return

// stderr, of which it remembers the unfinished last line: a log line erases it, and it is written again below.
class StderrSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void write(std::string_view text) {
    const std::lock_guard lock(mutex_);
    put(text);
    std::fflush(stderr);
    const size_t line_break = text.rfind('\n');
    if (line_break != std::string_view::npos) {
      open_line_.clear();
      text.remove_prefix(line_break + 1);
    }
    if (text.starts_with('\r')) open_line_.clear();
    open_line_ += text;
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (!open_line_.empty()) put(fmt::format("\r{}", kAnsiErase));
    put(fmt::format("{}{}\n", line_beginning(message.level),
                    std::string_view(message.payload.data(), message.payload.size())));
    put(open_line_);
    flush_();
  }
  void flush_() override { std::fflush(stderr); }

  static void put(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

  std::string open_line_;  // with the characters that placed it
};

// Returns a line without the characters that place it over a live one.
std::string_view without_cursor_moves(std::string_view line) {
  if (const size_t start = line.rfind('\r'); start != std::string_view::npos) line.remove_prefix(start + 1);
  if (line.starts_with(kAnsiErase)) line.remove_prefix(kAnsiErase.size());
  return line;
}

// Text as spdlog's patterns spell it, where % begins a field.
std::string pattern_text(const std::string& text) {
  std::string escaped;
  for (const char c : text) escaped += c == '%' ? "%%" : std::string(1, c);
  return escaped;
}

// Writes lines to stderr, and to a file once there is one.
class Log {
 public:
  // Starts with the level of the environment.
  Log() : stderr_(std::make_shared<StderrSink>()), lines_("megalith", stderr_) {
    lines_.set_level(level_of(env_string("MEGALITH_LOG_LEVEL").value_or("info")));
  }

  // Lines go to the receiver, if there is one, and otherwise to stderr; here, so that no sink's lock is held meanwhile.
  void write(LogLevel level, std::string_view text) {
    const std::shared_ptr<const LogReceiver> receiver = receiver_.load();
    if (!receiver) return lines_.log(spdlog_level(level), text);
    if (lines_.should_log(spdlog_level(level)) && stderr_->should_log(spdlog_level(level))) (*receiver)(level, text);
    if (lines_.should_log(spdlog_level(level))) write_to_file(text, level);
  }
  void write_as_it_is(std::string_view text) {
    const std::shared_ptr<const LogReceiver> receiver = receiver_.load();
    if (!receiver) return stderr_->write(text);
    for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
      (*receiver)(LogLevel::kInfo, without_cursor_moves(text.substr(0, end)));
      text.remove_prefix(end + 1);
    }
  }
  void set_receiver(LogReceiver receiver) {
    receiver_ = receiver ? std::make_shared<const LogReceiver>(std::move(receiver)) : nullptr;
  }

  spdlog::logger& lines() { return lines_; }
  StderrSink& stderr_sink() { return *stderr_; }

  // The file gets its own logger too, for text that must not go to stderr. Lines are flushed at once, to survive a
  // crash of the process.
  void add_file(const std::filesystem::path& path) {
    if (!file_names_.insert(path.string()).second) return;  // a rank that is restarted in its process
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
    sink->set_pattern(fmt::format("%Y-%m-%d %H:%M:%S.%e {} %l: %v", pattern_text(path.stem().string())));
    file_lines_ = std::make_unique<spdlog::logger>("megalith file", sink);
    file_lines_->flush_on(spdlog::level::info);
    lines_.sinks().push_back(std::move(sink));
    lines_.flush_on(spdlog::level::info);
  }
  void write_to_file(std::string_view text, LogLevel level) {
    if (!file_lines_) return;
    while (text.ends_with('\n')) text.remove_suffix(1);
    for (size_t end = 0; end != std::string_view::npos;) {
      end = text.find('\n');
      file_lines_->log(spdlog_level(level), text.substr(0, end));
      if (end != std::string_view::npos) text.remove_prefix(end + 1);
    }
  }

 private:
  std::shared_ptr<StderrSink> stderr_;
  spdlog::logger lines_;
  std::atomic<std::shared_ptr<const LogReceiver>> receiver_;
  std::set<std::string> file_names_;
  std::unique_ptr<spdlog::logger> file_lines_;  // writes to the file only; nullptr without a file
};

// Created at the first line. There is one per process, as there is one stderr.
Log& process_log() {
  static Log log;
  return log;
}

}  // namespace

void set_log_level(std::string_view name) { process_log().lines().set_level(level_of(name)); }

bool is_logged(LogLevel level) { return process_log().lines().should_log(spdlog_level(level)); }

void quiet_stderr(bool quiet) {
  process_log().stderr_sink().set_level(quiet ? spdlog::level::warn : spdlog::level::trace);
}

bool is_shown(LogLevel level) {
  return is_logged(level) && process_log().stderr_sink().should_log(spdlog_level(level));
}

void add_log_file(const std::filesystem::path& path) {
  try {
    std::filesystem::create_directories(path.parent_path());
    process_log().add_file(path);
  } catch (const std::exception& error) {
    throw ConfigError(fmt::format("the log file {} cannot be written: {}", path.string(), error.what()));
  }
}

void write_to_stderr(std::string_view text) { process_log().write_as_it_is(text); }

void log_to_file(std::string_view text, LogLevel level) { process_log().write_to_file(text, level); }

void log_text(LogLevel level, std::string_view text) { process_log().write(level, text); }

void set_log_receiver(LogReceiver receiver) { process_log().set_receiver(std::move(receiver)); }

}  // namespace megalith
