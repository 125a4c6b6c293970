// Validation and repair of UTF-8. The rest of the tokenizer relies on valid text: utf8_length and code_point_at read
// the lead byte and trust it.
#include "megalith/tokenizer/text/utf8.h"

#include "megalith/base/error.h"

#include <algorithm>
#include <cstring>

namespace megalith::tokenizer {

namespace {

struct Lead {
  size_t length;            // bytes of the whole character; 0 for a byte that cannot start one
  unsigned char low, high;  // allowed second bytes: excludes overlong forms, surrogates and values above U+10FFFF
};

// The table of well-formed UTF-8 in the Unicode standard (table 3-7).
Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte < 0xF0) {
    const unsigned char low = byte == 0xE0 ? 0xA0 : 0x80;
    const unsigned char high = byte == 0xED ? 0x9F : 0xBF;
    return {3, low, high};
  }
  if (byte > 0xF4) return {0, 0, 0};
  const unsigned char low = byte == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = byte == 0xF4 ? 0x8F : 0xBF;
  return {4, low, high};
}

// Returns the first position at or after `at` that is not ASCII, to within one word (8 bytes at a time).
size_t skip_ascii(std::string_view text, size_t at) {
  while (at + sizeof(uint64_t) <= text.size()) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + at, sizeof(word));
    if ((word & 0x8080808080808080u) != 0) break;
    at += sizeof(word);
  }
  return at;
}

}  // namespace

// An invalid part ends before the first byte that does not belong to it ("maximal subpart" in the Unicode standard), so
// that replacing it gives as many U+FFFD as Python and Rust do.
Utf8Part utf8_part(std::string_view text, size_t at) {
  const Lead lead = lead_of(static_cast<unsigned char>(text[at]));
  if (lead.length == 0) return {Utf8Part::Kind::kInvalid, 1};
  for (size_t i = 1; i < lead.length; ++i) {
    if (at + i == text.size()) return {Utf8Part::Kind::kUnfinished, i};
    const auto byte = static_cast<unsigned char>(text[at + i]);
    const bool fits = i == 1 ? byte >= lead.low && byte <= lead.high : (byte & 0xC0) == 0x80;
    if (!fits) return {Utf8Part::Kind::kInvalid, i};
  }
  return {Utf8Part::Kind::kCharacter, lead.length};
}

std::optional<size_t> first_invalid_utf8(std::string_view text) {
  for (size_t at = skip_ascii(text, 0); at < text.size();) {
    const Utf8Part part = utf8_part(text, at);
    if (part.kind != Utf8Part::Kind::kCharacter) return at;
    at += part.bytes;
    if (part.bytes == 1) at = skip_ascii(text, at);
  }
  return std::nullopt;
}

// Called once per text at the border of the library; a message with the offset helps to find the line of a corpus.
void require_valid_utf8(std::string_view text) {
  if (const auto bad = first_invalid_utf8(text))
    throw DataError(fmt::format("the text is not valid UTF-8: byte {} (of {}) is 0x{:02X}", *bad, text.size(),
                                static_cast<unsigned char>(text[*bad])));
}

// Valid text is copied at once; only from the first invalid byte on is it taken character by character.
std::string replace_invalid_utf8(std::string_view text) {
  const std::optional<size_t> first = first_invalid_utf8(text);
  if (!first) return std::string(text);
  std::string result(text.substr(0, *first));
  for (size_t at = *first; at < text.size();) {
    const Utf8Part part = utf8_part(text, at);
    result += part.kind == Utf8Part::Kind::kCharacter ? text.substr(at, part.bytes) : kReplacementCharacter;
    at += part.bytes;
  }
  return result;
}

// A streamed text may end in the middle of a character: "caf\xC3" has 3 finished bytes.
size_t finished_utf8_bytes(std::string_view text) {
  // An unfinished character has at most three bytes.
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const size_t at = text.size() - back;
    if ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) continue;
    const Utf8Part part = utf8_part(text, at);
    return part.kind == Utf8Part::Kind::kUnfinished ? at : text.size();
  }
  return text.size();
}

// The text is known to be valid, so the lead byte alone decides.
char32_t code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  switch (utf8_length(text[at])) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  }
}

size_t previous_character(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

void append_utf8(std::string& text, char32_t code) {
  // A continuation byte: 10 and six bits.
  const auto tail = [](char32_t bits) { return static_cast<char>(0x80 | (bits & 0x3F)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += {static_cast<char>(0xC0 | code >> 6), tail(code)};
  } else if (code < 0x10000) {
    text += {static_cast<char>(0xE0 | code >> 12), tail(code >> 6), tail(code)};
  } else {
    text += {static_cast<char>(0xF0 | code >> 18), tail(code >> 12), tail(code >> 6), tail(code)};
  }
}

}  // namespace megalith::tokenizer
