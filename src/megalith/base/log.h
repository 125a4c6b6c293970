// What Megalith says while it runs: lines on stderr, through spdlog. stdout is for data.
//
// How much is said is set once a process: MEGALITH_LOG_LEVEL (trace, debug, info, warn, error), or set_log_level.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace megalith {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

void log_text(LogLevel level, std::string_view text);
// Throws ConfigError for a name that is not a level.
void set_log_level(std::string_view name);

// Whether lines of this level are said.
bool is_logged(LogLevel level);

// From now on lines also go to this file, at its end; the folder is made. Throws ConfigError when it cannot be written.
void add_log_file(const std::filesystem::path& path);
// For the file alone, as it is: what people see in another form (progress, a last message). Nothing without a file.
void log_to_file(std::string_view text);

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_text(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_text(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace megalith
