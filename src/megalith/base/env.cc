// Environment variables. An empty value counts as unset (env_exact excepted), because shells and job scripts often
// export empty ones; a value that cannot be understood is an error and not a default.
#include "megalith/base/env.h"

#include <cstdlib>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith {

std::optional<std::string> env_exact(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

std::optional<std::string> env_string(const char* name) {
  auto value = env_exact(name);
  if (value && value->empty()) return std::nullopt;
  return value;
}

std::optional<int64_t> env_int(const char* name) {
  const auto text = env_string(name);
  if (!text) return std::nullopt;
  const auto value = parse_int(trim(*text));
  check<ConfigError>(value.has_value(), "environment variable {} is \"{}\"; it must be a whole number", name, *text);
  return value;
}

// The words of shells and of Python programs, in any case.
bool env_flag(const char* name) {
  const std::string text = to_lower(env_string(name).value_or("0"));
  if (text == "1" || text == "true" || text == "yes" || text == "on") return true;
  check<ConfigError>(text == "0" || text == "false" || text == "no" || text == "off",
                     "environment variable {} is \"{}\"; it must be 1 or 0", name, text);
  return false;
}

}  // namespace megalith
