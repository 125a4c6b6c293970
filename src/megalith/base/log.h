// Log lines on stderr and in a file, through spdlog. stdout is reserved for data.
//
//   on stderr     saved out/checkpoint-60                 people read it: only what is not a remark says what it is
//                 warning: tf32 has no effect on the CPU  (debug, warning, error)
//   in the file   2026-11-18 09:31:17.042 rank-3 info: saved out/checkpoint-60
//
// The level is set once per process: by MEGALITH_LOG_LEVEL (trace, debug, info, warn, error) or by set_log_level.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace megalith {

// Levels that Megalith logs at, least severe first.
enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Logs one line; thread-safe, like every function here but add_log_file.
void log_text(LogLevel level, std::string_view text);
// Sets the least severe level that is logged. Throws ConfigError for an unknown name.
void set_log_level(std::string_view name);

// Returns whether lines of this level are logged.
bool is_logged(LogLevel level);

// Leaves only warnings and errors on stderr (--quiet), or shows everything again. The file gets all lines either way.
void quiet_stderr(bool quiet = true);
// Returns whether lines of this level appear on stderr.
bool is_shown(LogLevel level);

// Writes text to stderr as it is. A last line without a line break stays at the bottom: log lines appear above it. That
// is how a live line survives them; a text that begins with a carriage return takes its place.
void write_to_stderr(std::string_view text);

// Also appends all further lines to this file, each with its date, time and level, and with the file's name without
// extension, so that lines of several ranks can be merged. Creates the folder. Throws ConfigError if the file cannot be
// written.
void add_log_file(const std::filesystem::path& path);
// Writes lines to the log file only, if there is one: text that stderr shows in another form (a summary, a final
// message).
void log_to_file(std::string_view text, LogLevel level = LogLevel::kInfo);

// Formats and logs one line at level info or warning. May be called by any thread.
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_text(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_text(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace megalith
