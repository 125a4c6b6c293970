// UTF-8 byte by byte: what is valid, what is cut off, and what replaces invalid parts.
//
// An invalid part is maximal in the sense of the Unicode standard (chapter 3, "U+FFFD substitution of maximal
// subparts"), as in Rust, Python and browsers: the longest prefix of a valid character, or else one byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megalith::tokenizer {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// One step through a text: a character or an invalid part, and its length.
struct Utf8Part {
  enum class Kind { kCharacter, kInvalid, kUnfinished };  // kUnfinished: the text ends inside a character
  Kind kind = Kind::kInvalid;
  size_t bytes = 1;
};

// Returns the part that starts at `at`; requires at < text.size().
Utf8Part utf8_part(std::string_view text, size_t at);

// Returns the offset of the first byte that is not part of a valid character; std::nullopt for valid text.
std::optional<size_t> first_invalid_utf8(std::string_view text);

// Throws DataError, naming the first bad byte, unless the text is valid.
void require_valid_utf8(std::string_view text);

// Returns the text with U+FFFD in place of each invalid part, including an unfinished end.
// "a\xFFb" -> "a\uFFFDb"; two adjacent invalid parts become two characters.
std::string replace_invalid_utf8(std::string_view text);

// Returns the number of bytes of `text` without an unfinished character at its end.
// For texts that arrive in parts: the rest may be completed by the next one.
size_t finished_utf8_bytes(std::string_view text);

// Returns the number of bytes of the character that starts with `lead`. Requires valid UTF-8.
inline size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Returns the code point at `at`. Requires valid UTF-8 and at < text.size().
char32_t code_point_at(std::string_view text, size_t at);

// Returns the start of the character before `at`. Requires valid UTF-8 and 0 < at <= text.size().
size_t previous_character(std::string_view text, size_t at);

// Appends a code point as UTF-8.
void append_utf8(std::string& text, char32_t code);

}  // namespace megalith::tokenizer
