// What stands between the quotes of a string literal, and whole numbers of other bases.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megalith::tokenizer::jinja {

// Python's escapes resolved: \n, \', \x41, \u00e9, \U0001F600, \101, …; one that Python does not know stays as it is.
// Nothing, with the reason in `problem`, for one that is cut off or no character.
std::optional<std::string> unescape_string(std::string_view text, std::string& problem);

// All of `text` as digits of a base from 2 to 36; nothing for anything else and beyond 64 bits.
std::optional<int64_t> parse_based_int(std::string_view text, int base);

}  // namespace megalith::tokenizer::jinja
