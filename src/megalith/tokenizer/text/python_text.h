// Text as Python's str treats it: whitespace, letter case, repr, printed numbers. Texts are valid UTF-8; positions and
// lengths count code points.
//
// Letter case beyond ASCII needs utf8proc; without it these functions throw ConfigError.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::tokenizer {

// str.isspace of one character: the Unicode property White_Space and the separators U+001C to U+001F.
bool is_python_space(char32_t c);

// The ends of a text that are stripped.
enum class Side { kLeft, kRight, kBoth };
// str.strip, lstrip, rstrip: removes whitespace, or the characters in `characters`.
// Returns a view of `text`; nothing is copied.
std::string_view strip(std::string_view text, std::optional<std::string_view> characters, Side side);

// str.upper, lower, title, capitalize and swapcase.
std::string python_upper(std::string_view text);
std::string python_lower(std::string_view text);
std::string python_title(std::string_view text);       // capitalizes every word
std::string python_capitalize(std::string_view text);  // capitalizes the first character, lowers the others
std::string python_swapcase(std::string_view text);

// str.isalpha and its like; false for an empty text.
enum class CharacterClass { kAlpha, kDigit, kAlphanumeric, kSpace, kAscii };
bool is_all(std::string_view text, CharacterClass kind);
// str.isupper and islower: there are cased letters, and all of them have that case.
bool is_upper_text(std::string_view text);
bool is_lower_text(std::string_view text);

// Returns the number of characters.
size_t code_points(std::string_view text);
// Returns the byte offset of every character, followed by the size of the text.
std::vector<size_t> character_offsets(std::string_view text);

// repr of a str: in quotes, with escapes for characters that do not print.
std::string python_repr(std::string_view text);
// repr of a float: the shortest text that reads back as the same number ("1.0", "1e-05", "nan").
std::string python_repr(double value);

// str.splitlines.
// "a\r\nb\n" -> "a", "b": a line end at the end of the text starts no further line.
std::vector<std::string_view> python_lines(std::string_view text, bool keep_ends = false);

}  // namespace megalith::tokenizer
