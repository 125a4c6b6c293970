#include "megalith/base/log.h"

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

}  // namespace

void set_log_level(std::string_view name) { logger().set_level(level_of(name)); }

void log_text(LogLevel level, std::string_view text) {
  switch (level) {
    case LogLevel::kDebug:
      return logger().debug(text);
    case LogLevel::kInfo:
      return logger().info(text);
    case LogLevel::kWarning:
      return logger().warn(text);
    case LogLevel::kError:
      return logger().error(text);
  }
}

}  // namespace megalith
