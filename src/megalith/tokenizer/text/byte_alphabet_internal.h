// The alphabet of byte-level models: each byte has a printable character that stands for it ("Ġ" for a space), so that
// a vocabulary of bytes can be written as text. From GPT-2's encoder.py.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megalith::tokenizer {

// Returns the character of a byte, as UTF-8.
std::string_view character_of_byte(unsigned char byte);

// Appends the characters of all bytes of `bytes` to `out`.
void append_byte_characters(std::string& out, std::string_view bytes);

// Returns the bytes that a text in the alphabet stands for; std::nullopt when it has a character outside the alphabet.
std::optional<std::string> bytes_of_characters(std::string_view text);

}  // namespace megalith::tokenizer
