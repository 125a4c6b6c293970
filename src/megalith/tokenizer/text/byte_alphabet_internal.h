// The alphabet of byte-level models: each byte has a printable character that stands for it ("Ġ" for a blank), so that
// a vocabulary of bytes can be written as text. From GPT-2's encoder.py.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megalith::tokenizer {

// The character of a byte, as UTF-8.
std::string_view character_of_byte(unsigned char byte);

// The characters of all bytes of `bytes`, appended to `out`.
void append_byte_characters(std::string& out, std::string_view bytes);

// The bytes that a text in the alphabet stands for; nothing when it has a character that is not in the alphabet.
std::optional<std::string> bytes_of_characters(std::string_view text);

}  // namespace megalith::tokenizer
