// String literals of templates, by the rules of Python's str literals:
//   "a\n"    ->  a, newline          "\x41"  ->  A             "\101"  ->  A
//   "\u00e9" ->  é                   "\q"    ->  \q            "\N{DASH}" is refused, for want of the table of names
#include "megalith/tokenizer/jinja/string_literal.h"

#include <fmt/format.h>

#include <charconv>

#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer::jinja {

namespace {

// Reads the digits of \xHH, \uHHHH or \UHHHHHHHH at `at`, appends the character and advances.
bool append_hex(std::string& out, std::string_view text, size_t& at, size_t digits, std::string& problem) {
  const auto code = at + digits <= text.size() ? parse_based_int(text.substr(at, digits), 16) : std::nullopt;
  if (!code) {
    problem = fmt::format("the escape \\{} needs {} hexadecimal digits", text[at - 1], digits);
    return false;
  }
  if (*code > 0x10FFFF || (*code >= 0xD800 && *code <= 0xDFFF)) {
    problem = fmt::format("the escape \\{}{} is not a Unicode character", text[at - 1], text.substr(at, digits));
    return false;
  }
  append_utf8(out, static_cast<char32_t>(*code));
  at += digits;
  return true;
}

// Up to three octal digits, the first of which is at `at`.
void append_octal(std::string& out, std::string_view text, size_t& at) {
  char32_t code = 0;
  const size_t end = at + 3;
  for (; at < end && at < text.size() && text[at] >= '0' && text[at] <= '7'; ++at)
    code = code * 8 + static_cast<char32_t>(text[at] - '0');
  append_utf8(out, code);
}

}  // namespace

std::optional<std::string> unescape_string(std::string_view text, std::string& problem) {
  // Escapes of one letter, and at the same index the character that each stands for.
  constexpr std::string_view kNames = "\\'\"abfnrtv";
  constexpr std::string_view kCharacters = "\\'\"\a\b\f\n\r\t\v";
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '\\' || at + 1 == text.size()) {
      out += text[at++];
      continue;
    }
    const char kind = text[at + 1];
    if (const size_t name = kNames.find(kind); name != std::string_view::npos) {
      out += kCharacters[name];
      at += 2;
    } else if (kind == '\n') {
      // A backslash at the end of a line joins the lines.
      at += 2;
    } else if (kind >= '0' && kind <= '7') {
      append_octal(out, text, ++at);
    } else if (kind == 'x' || kind == 'u' || kind == 'U') {
      at += 2;
      if (!append_hex(out, text, at, kind == 'x' ? 2 : kind == 'u' ? 4 : 8, problem)) return std::nullopt;
    } else if (kind == 'N') {
      problem = "characters by name (\\N{…}) are not supported; write the character itself or \\u and its code";
      return std::nullopt;
      // An unknown escape keeps its backslash, as in Python; the character after it is read in the next round.
    } else {
      out += '\\';
      ++at;
    }
  }
  return out;
}

std::optional<int64_t> parse_based_int(std::string_view text, int base) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || text[0] == '-') return std::nullopt;
  return value;
}

}  // namespace megalith::tokenizer::jinja
