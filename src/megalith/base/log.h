// What Megalith says while it runs: lines on stderr, through spdlog. stdout is for data.
//
// How much is said is set once a process: MEGALITH_LOG_LEVEL (trace, debug, info, warn, error), or set_log_level.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace megalith {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

void log_text(LogLevel level, std::string_view text);
// Throws ConfigError for a name that is not a level.
void set_log_level(std::string_view name);

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_text(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_text(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace megalith
