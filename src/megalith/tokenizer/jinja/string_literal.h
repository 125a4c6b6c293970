// The contents of string literals, and whole numbers in other bases.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megalith::tokenizer::jinja {

// Resolves Python's escapes: \n, \', \x41, \u00e9, \U0001F600, \101, …; unknown ones stay as they are. Returns
// std::nullopt, with the reason in `problem`, for an escape that is cut off or not a character.
std::optional<std::string> unescape_string(std::string_view text, std::string& problem);

// Parses all of `text` as digits in a base from 2 to 36; std::nullopt for anything else, and for numbers of more than
// 64 bits.
// ("ff", 16) -> 255; no sign and no prefix.
std::optional<int64_t> parse_based_int(std::string_view text, int base);

}  // namespace megalith::tokenizer::jinja
