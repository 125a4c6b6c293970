// Log lines on stderr, through spdlog. stdout is reserved for data.
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

// Writes text to stderr as it is. A last line without a line break stays at the bottom: log lines appear above it. That
// is how a live line survives them; a text that begins with a carriage return takes its place.
void write_to_stderr(std::string_view text);

// Also appends all further lines to this file; creates its folder. Throws ConfigError if it cannot be written.
void add_log_file(const std::filesystem::path& path);
// Writes to the log file only, if there is one: text that stderr shows in another form (progress, a final message).
void log_to_file(std::string_view text);

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
