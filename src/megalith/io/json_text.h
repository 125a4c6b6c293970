// JSON from files that others wrote: parsed strictly, and shown in messages.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace megalith::io {

// Keeps the order of keys, so that a file that is read, changed and written again stays recognisable.
using Json = nlohmann::ordered_json;

// The one value that `text` holds. Throws DataError, naming `file_name` and the place, for anything but valid UTF-8 and
// valid JSON (no byte order mark, no comments, no NaN), for a key that an object has twice, and for nesting deeper than
// kMaxJsonDepth.
Json parse_json(std::string_view text, const std::string& file_name);
constexpr size_t kMaxJsonDepth = 64;

// In double quotes, with control characters escaped, cut after some 100 characters: names from files in messages. Bytes
// that are not UTF-8 show as U+FFFD.
std::string in_quotes(std::string_view text);

// A value in a message: `"32" (a string)`, `1.5 (a number)`, `null`, `[1,2] (a list)`.
std::string json_in_words(const Json& value);

}  // namespace megalith::io
