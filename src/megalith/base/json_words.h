// Messages of the JSON library, without the names of its exceptions, which mean nothing to a user.
#pragma once

#include <string_view>

namespace megalith {

// "[json.exception.parse_error.101] parse error at line 1, column 2: …" -> "parse error at line 1, column 2: …"
inline std::string_view without_exception_name(std::string_view message) {
  constexpr std::string_view kEnd = "] ";
  if (const size_t end = message.find(kEnd); message.starts_with("[json.exception") && end != std::string_view::npos)
    message.remove_prefix(end + kEnd.size());
  return message;
}

}  // namespace megalith
