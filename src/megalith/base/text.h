// Text helpers that messages and parsers share.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// Returns "a, b and c"; with more than `limit` items, "a, b, … (17 in all)"; "none" for an empty list.
std::string list_in_words(std::span<const std::string> items, size_t limit = 16);
std::string list_in_words(std::span<const int> items, size_t limit = 16);

// Splits at every `separator`: "a,,b" gives three parts, "" gives one empty part.
std::vector<std::string> split(std::string_view text, char separator);
// Removes white space at both ends.
std::string_view trim(std::string_view text);
// Lower-cases ASCII letters; other bytes stay.
std::string to_lower(std::string_view text);
// Returns the text before the first line break; libtorch's errors continue with a stack trace.
std::string first_line(std::string_view text);

// Parses the whole text as a decimal integer ("12", "-3"); std::nullopt for anything else ("1e3", "1.0", " 1", "").
std::optional<int64_t> parse_int(std::string_view text);
// Parses the whole text as a decimal floating-point number, as Python's float() does ("1e-5", ".1", "inf").
std::optional<double> parse_double(std::string_view text);

// Returns the number of edits (insert, delete, replace, swap two neighbors) that turn a into b.
size_t edit_distance(std::string_view a, std::string_view b);
// Returns at most `limit` candidates that `word` may be a misspelling of, nearest first.
std::vector<std::string> nearest(std::string_view word, std::span<const std::string> candidates, size_t limit = 3);

// 64-bit FNV-1a: a short, stable name for a long text. Too weak as a checksum of data.
uint64_t fnv1a64(std::string_view text);

}  // namespace megalith
