// Properties of characters from utf8proc: classes, letter case, normal forms, grapheme clusters.
//
// Without utf8proc (unicode_absent.cc) every function except is_whitespace and is_printable throws InternalError. Code
// that opens a file which may need them calls require_unicode() first, which says what is missing.
#pragma once

#include <string>
#include <string_view>

namespace megalith::tokenizer {

// Throws ConfigError, naming the library and `file`, when the build has no utf8proc.
void require_unicode(const std::string& file);

// The Unicode property White_Space, as Rust's char::is_whitespace and Oniguruma's \s.
constexpr bool is_whitespace(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}
// Tests by general category; newer characters than utf8proc's are included.
bool is_numeric(char32_t c);          // Nd, Nl, No
bool is_punctuation(char32_t c);      // P*, and the ASCII symbols
bool is_word(char32_t c);             // \w of Unicode TR18: alphabetic, marks, Nd, Pc, join controls
bool is_mark(char32_t c);             // M*
bool is_nonspacing_mark(char32_t c);  // Mn
bool is_other(char32_t c);            // Cc, Cf, Co: control, format, private use
bool is_letter(char32_t c);           // L*
bool is_upper_letter(char32_t c);     // Lu
bool is_lower_letter(char32_t c);     // Ll
bool is_decimal_digit(char32_t c);    // Nd

// Appends the full lower case of c (U+0130 becomes two characters).
// Unlike str.lower of Python, without the final sigma, which needs the neighbors of c.
void append_lower(std::string& text, char32_t c);
// Append the upper case of c, or its form at the start of a word ("ß": "SS" and "Ss").
void append_upper(std::string& text, char32_t c);
void append_title(std::string& text, char32_t c);

// str.isprintable of Python: not control, format, private use, unassigned, or a separator other than the space. Without
// utf8proc everything beyond ASCII counts as printable.
bool is_printable(char32_t c);

// The four normal forms of Unicode: canonical or compatible (K), composed (C) or decomposed (D).
enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// Stretches that cannot change are copied; only the rest is decomposed and composed again. Requires valid UTF-8.
std::string normalize(NormalForm form, std::string_view text);

// Returns the end of the extended grapheme cluster that starts at `at`. Requires valid UTF-8.
size_t grapheme_end(std::string_view text, size_t at);

}  // namespace megalith::tokenizer
