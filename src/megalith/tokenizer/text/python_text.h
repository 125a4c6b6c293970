// Text as Python's str treats it: whitespace, letter case, repr, numbers in print. Texts are valid UTF-8; positions and
// lengths count code points.
//
// Letter case of characters beyond ASCII needs utf8proc: without it the functions throw ConfigError.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::tokenizer {

// str.isspace of one character: the Unicode property White_Space and the separators U+001C to U+001F.
bool is_python_space(char32_t c);

enum class Side { kLeft, kRight, kBoth };
// str.strip, lstrip, rstrip: whitespace, or the characters of `characters`.
std::string_view strip(std::string_view text, std::optional<std::string_view> characters, Side side);

std::string python_upper(std::string_view text);
std::string python_lower(std::string_view text);
std::string python_title(std::string_view text);       // every word: first letter large, the others small
std::string python_capitalize(std::string_view text);  // the first character large, the others small
std::string python_swapcase(std::string_view text);

// str.isalpha and its like; false for an empty text.
enum class CharacterClass { kAlpha, kDigit, kAlphanumeric, kSpace, kAscii };
bool is_all(std::string_view text, CharacterClass kind);
// str.isupper, islower: there are cased letters and all of them are such.
bool is_upper_text(std::string_view text);
bool is_lower_text(std::string_view text);

// Characters of a text.
size_t code_points(std::string_view text);
// Byte offset of every character, and the size of the text at the end.
std::vector<size_t> character_offsets(std::string_view text);

// repr of a str: in quotes, with escapes for what does not print.
std::string python_repr(std::string_view text);
// repr of a float: the shortest text that reads back as the same number ("1.0", "1e-05", "nan").
std::string python_repr(double value);

// str.splitlines.
std::vector<std::string_view> python_lines(std::string_view text, bool keep_ends = false);

}  // namespace megalith::tokenizer
