// Python's str in C++. ASCII is handled directly; only other characters need utf8proc, so templates in English work
// without it.
#include "megalith/tokenizer/text/python_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "megalith/tokenizer/text/unicode_internal.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer {

namespace {

bool is_ascii(char32_t c) { return c < 0x80; }
bool is_ascii_upper(char32_t c) { return c >= 'A' && c <= 'Z'; }
bool is_ascii_lower(char32_t c) { return c >= 'a' && c <= 'z'; }

// Throws in a build without utf8proc; otherwise does nothing.
void need_unicode() { require_unicode("letter case in a chat template"); }

// Each of these handles ASCII first, without a table and in builds without utf8proc.
bool is_upper(char32_t c) {
  if (is_ascii(c)) return is_ascii_upper(c);
  need_unicode();
  return is_upper_letter(c);
}
bool is_lower(char32_t c) {
  if (is_ascii(c)) return is_ascii_lower(c);
  need_unicode();
  return is_lower_letter(c);
}

void add_upper(std::string& out, char32_t c) {
  if (is_ascii(c)) {
    out += static_cast<char>(is_ascii_lower(c) ? c - 'a' + 'A' : c);
  } else {
    need_unicode();
    append_upper(out, c);
  }
}
// Whether the character at an offset is a letter, for the rule of the final sigma.
bool is_letter_at(std::string_view text, size_t at) {
  const char32_t c = code_point_at(text, at);
  if (is_ascii(c)) return is_ascii_upper(c) || is_ascii_lower(c);
  need_unicode();
  return is_letter(c);
}

// Appends the character at `at` in lower case; a capital sigma that ends a word becomes a final sigma.
void add_lower(std::string& out, std::string_view text, size_t at) {
  constexpr char32_t kSigma = 0x3A3;
  const char32_t c = code_point_at(text, at);
  if (is_ascii(c)) {
    out += static_cast<char>(is_ascii_upper(c) ? c - 'A' + 'a' : c);
    return;
  }
  need_unicode();
  const size_t next = at + utf8_length(text[at]);
  // Python's rule for a final sigma, reduced to adjacent letters.
  const bool ends_word = c == kSigma && at > 0 && is_letter_at(text, previous_character(text, at)) &&
                         (next == text.size() || !is_letter_at(text, next));
  if (ends_word)
    out += "\u03C2";
  else
    append_lower(out, c);
}
void add_title(std::string& out, char32_t c) {
  if (is_ascii(c)) return add_upper(out, c);
  need_unicode();
  append_title(out, c);
}

// Calls f with every character and its offset.
template <typename F>
void each_character(std::string_view text, const F& f) {
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) f(code_point_at(text, at), at);
}

// str.isalpha, str.isdigit, … of one character. isdigit also accepts superscripts in Python; decimal digits are what
// templates mean.
bool is_of(char32_t c, CharacterClass kind) {
  switch (kind) {
    case CharacterClass::kAscii:
      return is_ascii(c);
    case CharacterClass::kSpace:
      return is_python_space(c);
    case CharacterClass::kDigit:
      if (is_ascii(c)) return c >= '0' && c <= '9';
      need_unicode();
      return is_decimal_digit(c);
    case CharacterClass::kAlpha:
      if (is_ascii(c)) return is_ascii_upper(c) || is_ascii_lower(c);
      need_unicode();
      return is_letter(c);
    case CharacterClass::kAlphanumeric:
      return is_of(c, CharacterClass::kAlpha) || (is_ascii(c) ? c >= '0' && c <= '9' : is_numeric(c));
  }
  return false;
}

// Characters without case do not count.
bool all_cased(std::string_view text, bool upper) {
  bool found = false, other = false;
  each_character(text, [&](char32_t c, size_t) {
    (upper ? is_upper(c) : is_lower(c)) ? found = true : other |= upper ? is_lower(c) : is_upper(c);
  });
  return found && !other;
}

}  // namespace

// str.isspace also accepts the separators U+001C to U+001F, which Unicode's White_Space does not contain.
bool is_python_space(char32_t c) { return is_whitespace(c) || (c >= 0x1C && c <= 0x1F); }

// Works on whole characters, from both ends.
std::string_view strip(std::string_view text, std::optional<std::string_view> characters, Side side) {
  const auto goes = [&](size_t at) {
    const std::string_view character = text.substr(at, utf8_length(text[at]));
    return characters ? characters->find(character) != std::string_view::npos
                      : is_python_space(code_point_at(text, at));
  };
  size_t begin = 0, end = text.size();
  if (side != Side::kRight)
    while (begin < end && goes(begin)) begin += utf8_length(text[begin]);
  if (side != Side::kLeft) {
    while (end > begin) {
      const size_t last = previous_character(text, end);
      if (!goes(last)) break;
      end = last;
    }
  }
  return text.substr(begin, end - begin);
}

std::string python_upper(std::string_view text) {
  std::string out;
  each_character(text, [&](char32_t c, size_t) { add_upper(out, c); });
  return out;
}

std::string python_lower(std::string_view text) {
  std::string out;
  each_character(text, [&](char32_t, size_t at) { add_lower(out, text, at); });
  return out;
}

// str.title: a letter after anything but a letter is capitalized, so "it's" becomes "It'S".
std::string python_title(std::string_view text) {
  std::string out;
  bool in_word = false;
  each_character(text, [&](char32_t c, size_t at) {
    in_word ? add_lower(out, text, at) : add_title(out, c);
    in_word = is_upper(c) || is_lower(c);
  });
  return out;
}

// "hELLO wORLD" -> "Hello world".
std::string python_capitalize(std::string_view text) {
  std::string out;
  bool first = true;
  each_character(text, [&](char32_t c, size_t at) {
    first ? add_title(out, c) : add_lower(out, text, at);
    first = false;
  });
  return out;
}

std::string python_swapcase(std::string_view text) {
  std::string out;
  each_character(text, [&](char32_t c, size_t at) { is_upper(c) ? add_lower(out, text, at) : add_upper(out, c); });
  return out;
}

// An empty text has no characters of a kind, but isascii is true for it, as in Python.
bool is_all(std::string_view text, CharacterClass kind) {
  bool all = !text.empty() || kind == CharacterClass::kAscii;
  each_character(text, [&](char32_t c, size_t) { all = all && is_of(c, kind); });
  return all;
}

bool is_upper_text(std::string_view text) { return all_cased(text, true); }
bool is_lower_text(std::string_view text) { return all_cased(text, false); }

size_t code_points(std::string_view text) {
  // Counts bytes that do not continue a character.
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (c & '\xC0') != '\x80'; }));
}

// The offset of each character, and the size of the text as the last one: character i is [i, i + 1).
std::vector<size_t> character_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  offsets.reserve(text.size() + 1);
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) offsets.push_back(at);
  offsets.push_back(text.size());
  return offsets;
}

// "it's" -> "it's" in double quotes, otherwise single quotes; \n, \x00 and what does not print are escaped.
std::string python_repr(std::string_view text) {
  // Python prefers single quotes, unless only double quotes avoid escaping.
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const char32_t c = code_point_at(text, at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (c < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (is_ascii(c) || is_printable(c)) {
      out += text.substr(at, utf8_length(text[at]));
    } else {
      out += c < 0x100     ? fmt::format("\\x{:02x}", static_cast<uint32_t>(c))
             : c < 0x10000 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(c))
                           : fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  return out + quote;
}

// The shortest digits that read back as the same number, which to_chars and Python both compute.
std::string python_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const double size = std::fabs(value);
  // Python's repr switches to exponents outside this range.
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto result = std::to_chars(std::begin(buffer), std::end(buffer), value,
                                    plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(std::begin(buffer), result.ptr);
  if (plain && text.find('.') == text.npos) text += ".0";
  return text;
}

std::vector<std::string_view> python_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = code_point_at(text, at);
    size_t next = at + utf8_length(text[at]);
    // The line ends of str.splitlines, which include separators that files rarely contain.
    const bool ends = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!ends) {
      at = next;
      continue;
    }
    if (c == '\r' && next < text.size() && text[next] == '\n') ++next;
    lines.push_back(text.substr(begin, (keep_ends ? next : at) - begin));
    begin = at = next;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

}  // namespace megalith::tokenizer
