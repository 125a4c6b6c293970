// Text helpers that messages and parsers share.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// "a, b and c"; with a limit, "a, b, … (17 in all)".
std::string list_in_words(std::span<const std::string> items, size_t limit = 16);
std::string list_in_words(std::span<const int> items, size_t limit = 16);

// Splits at every `separator`; "a,,b" gives three parts, "" gives one empty part.
std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);
std::string to_lower(std::string_view text);
// What stands before the first line break: of libtorch's errors, all but the stack.
std::string first_line(std::string_view text);

// The whole text as a decimal integer ("12", "-3"); nothing for anything else ("1e3", "1.0", " 1", "").
std::optional<int64_t> parse_int(std::string_view text);
// The whole text as a decimal floating-point number, as Python's float() reads it ("1e-5", ".1", "inf").
std::optional<double> parse_double(std::string_view text);

// Edits (insert, delete, replace, swap of neighbours) that turn a into b.
size_t edit_distance(std::string_view a, std::string_view b);
// The candidates closest to `word`, nearest first, at most `limit`; none that shares too little to be a typo.
std::vector<std::string> nearest(std::string_view word, std::span<const std::string> candidates, size_t limit = 3);

// 64-bit FNV-1a: a short, stable name for a long text. Not a checksum for data.
uint64_t fnv1a64(std::string_view text);

}  // namespace megalith
