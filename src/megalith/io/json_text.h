// Parses JSON from files that others wrote, strictly, and shows values in messages.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace megalith::io {

// Keeps the order of keys, so that a file that is read, changed and written again stays recognizable.
using Json = nlohmann::ordered_json;

// Returns the one value that `text` contains. Throws DataError, naming `file_name` and the position, for anything but
// valid UTF-8 and valid JSON (no byte order mark, no comments, no NaN), for a key that occurs twice in an object, and
// for nesting deeper than kMaxJsonDepth.
Json parse_json(std::string_view text, const std::string& file_name);
constexpr size_t kMaxJsonDepth = 64;

// Quotes a name from a file for a message: in double quotes, control characters escaped, cut after about 100 bytes.
// Invalid UTF-8 shows as U+FFFD.
std::string in_quotes(std::string_view text);

// Shows a value in a message: `"32" (a string)`, `1.5 (a number)`, `null`, `[1,2] (a list)`.
std::string json_in_words(const Json& value);

}  // namespace megalith::io
