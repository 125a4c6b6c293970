// Python's str.split, str.replace, str.count and the padding methods. All of them work on bytes and are right for
// characters, since no UTF-8 character occurs inside another; only widths and empty patterns need to count characters.
#include "megalith/tokenizer/jinja/text_search.h"

#include <algorithm>

#include "megalith/tokenizer/text/python_text.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer::jinja {

namespace {

// Returns the start of the first stretch of whitespace.
size_t find_space(std::string_view text) {
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at]))
    if (is_python_space(code_point_at(text, at))) return at;
  return std::string_view::npos;
}
// Returns the start of the last word.
size_t last_word(std::string_view text) {
  size_t at = text.size();
  while (at > 0) {
    const size_t before = previous_character(text, at);
    if (is_python_space(code_point_at(text, before))) break;
    at = before;
  }
  return at;
}

// str.split() without a separator: whitespace at the near end is dropped, and at the limit the rest is kept as it is.
std::vector<std::string> split_words(std::string_view text, int64_t limit, bool from_right) {
  std::vector<std::string> parts;
  const Side near = from_right ? Side::kRight : Side::kLeft;
  text = strip(text, std::nullopt, near);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.emplace_back(text);
      break;
    }
    if (from_right) {
      const size_t at = last_word(text);
      parts.emplace_back(text.substr(at));
      text = text.substr(0, at);
    } else {
      const size_t at = find_space(text);
      parts.emplace_back(text.substr(0, at));
      text = at == std::string_view::npos ? std::string_view() : text.substr(at);
    }
    text = strip(text, std::nullopt, near);
  }
  if (from_right) std::ranges::reverse(parts);
  return parts;
}

}  // namespace

// From the right, the parts are collected in reverse and turned around at the end: "a,b,c" with limit 1 and from_right
// gives {"a,b", "c"}.
std::vector<std::string> split_text(std::string_view text, std::optional<std::string_view> separator, int64_t limit,
                                    bool from_right) {
  if (!separator) return split_words(text, limit, from_right);
  std::vector<std::string> parts;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = from_right ? text.rfind(*separator) : text.find(*separator);
    if (at == std::string_view::npos) break;
    parts.emplace_back(from_right ? text.substr(at + separator->size()) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(at + separator->size());
  }
  parts.emplace_back(text);
  if (from_right) std::ranges::reverse(parts);
  return parts;
}

// An empty `old` matches between all characters: "ab".replace("", "-") is "-a-b-".
std::string replaced(std::string_view text, std::string_view old, std::string_view with, int64_t limit) {
  std::string out;
  size_t at = 0;
  for (int64_t count = 0; limit < 0 || count < limit; ++count) {
    const size_t found = text.find(old, at);
    if (found == std::string_view::npos) break;
    out += text.substr(at, found - at);
    out += with;
    at = found + old.size();
    if (!old.empty()) continue;
    if (at >= text.size()) return out;  // an empty text occurs between all characters and at both ends
    const size_t length = utf8_length(text[at]);
    out += text.substr(at, length);
    at += length;
  }
  return out += text.substr(std::min(at, text.size()));
}

// An empty text occurs before each character and at the end.
size_t occurrences(std::string_view text, std::string_view part) {
  if (part.empty()) return code_points(text) + 1;
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

std::string padded(std::string_view text, int64_t width, std::string_view fill, Alignment alignment) {
  const auto size = static_cast<int64_t>(code_points(text));
  const int64_t missing = std::max<int64_t>(width - size, 0);
  // str.center: if the width is odd, an odd space goes to the left.
  const int64_t left = alignment == Alignment::kLeft    ? 0
                       : alignment == Alignment::kRight ? missing
                                                        : missing / 2 + (missing & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (int64_t i = left; i < missing; ++i) out += fill;
  return out;
}

}  // namespace megalith::tokenizer::jinja
