#include "megalith/base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "megalith/base/env.h"
#include "megalith/base/error.h"

namespace megalith {

namespace {

spdlog::level::level_enum level_of(std::string_view name) {
  const auto level = spdlog::level::from_str(std::string(name));
  check<ConfigError>(level != spdlog::level::off || name == "off",
                     "log level \"{}\" is not known; it is one of trace, debug, info, warn, error, off", name);
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

// Made at the first line, with the level of the environment.
spdlog::logger& logger() {
  static const auto instance = [] {
    auto made = std::make_shared<spdlog::logger>("megalith", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%H:%M:%S %l: %v");
    made->set_level(level_of(env_string("MEGALITH_LOG_LEVEL").value_or("info")));
    return made;
  }();
  return *instance;
}

std::shared_ptr<spdlog::logger>& file_logger() {
  static std::shared_ptr<spdlog::logger> instance;
  return instance;
}

}  // namespace

void set_log_level(std::string_view name) { logger().set_level(level_of(name)); }

bool is_logged(LogLevel level) { return logger().should_log(spdlog_level(level)); }

void add_log_file(const std::filesystem::path& path) {
  try {
    std::filesystem::create_directories(path.parent_path());
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
    sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %l: %v");
    file_logger() = std::make_shared<spdlog::logger>("megalith file", sink);
    file_logger()->flush_on(spdlog::level::info);
    logger().sinks().push_back(std::move(sink));
    logger().flush_on(spdlog::level::info);
  } catch (const std::exception& error) {
    throw ConfigError(fmt::format("the log {} cannot be written: {}", path.string(), error.what()));
  }
}

void log_to_file(std::string_view text) {
  if (file_logger()) file_logger()->info(text);
}

void log_text(LogLevel level, std::string_view text) { logger().log(spdlog_level(level), text); }

}  // namespace megalith
