// GPT-2's alphabet of 256 printable characters, one per byte, in which byte-level vocabularies are written:
//   byte 0x41 -> A     byte 0x20 (space) -> Ġ (U+0120)     byte 0x0A (newline) -> Ċ (U+010A)
// Tokens so contain no whitespace or control characters, and any text is in the alphabet.
#include "megalith/tokenizer/text/byte_alphabet_internal.h"

#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer {

namespace {

// Printable Latin-1 bytes stand for themselves; the others get code points from U+0100 on, in order.
struct Alphabet {
  std::array<std::string, 256> characters;
  // 188 bytes are printable; the other 68 get U+0100 to U+0143, which is why the table ends there.
  std::array<int16_t, 0x144> bytes;  // by code point; -1: not in the alphabet

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;  // for bytes without a printable character
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const char32_t code = printable ? byte : next++;
      append_utf8(characters.at(byte), code);
      bytes.at(code) = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet table;
  return table;
}

}  // namespace

std::string_view character_of_byte(unsigned char byte) { return alphabet().characters[byte]; }

void append_byte_characters(std::string& out, std::string_view bytes) {
  const Alphabet& table = alphabet();
  for (const char byte : bytes) out += table.characters[static_cast<unsigned char>(byte)];
}

std::optional<std::string> bytes_of_characters(std::string_view text) {
  const Alphabet& table = alphabet();
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const char32_t code = code_point_at(text, at);
    if (code >= table.bytes.size() || table.bytes[code] < 0) return std::nullopt;
    result += static_cast<char>(table.bytes[code]);
  }
  return result;
}

}  // namespace megalith::tokenizer
