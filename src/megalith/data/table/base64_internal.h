// Base64 (RFC 4648), in which the text of a record carries the bytes of images.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megalith::data {

inline constexpr std::string_view kBase64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Appends the text of the bytes, padded with '='.
inline void append_base64(std::string_view bytes, std::string& out) {
  const size_t begin = out.size();
  out.resize(begin + (bytes.size() + 2) / 3 * 4, '=');
  char* to = out.data() + begin;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - at);
    uint32_t word = 0;
    for (size_t i = 0; i < 3; ++i) word = word << 8 | (i < count ? static_cast<unsigned char>(bytes[at + i]) : 0);
    for (size_t i = 0; i <= count; ++i) to[i] = kBase64Digits[word >> (18 - 6 * i) & 63];
    to += 4;
  }
}

// Returns the bytes; std::nullopt if the text is not base64 with its padding.
inline std::optional<std::string> decode_base64(std::string_view text) {
  static constexpr std::array<uint8_t, 256> kValues = [] {
    std::array<uint8_t, 256> values{};
    values.fill(64);
    for (size_t i = 0; i < 64; ++i) values[static_cast<unsigned char>(kBase64Digits[i])] = static_cast<uint8_t>(i);
    return values;
  }();
  if (text.size() % 4 != 0) return std::nullopt;
  size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t at = 0; at < text.size(); at += 4) {
    const size_t digits = at + 4 == text.size() ? 4 - padding : 4;
    uint32_t word = 0;
    for (size_t i = 0; i < 4; ++i) {
      const uint32_t value = i < digits ? kValues[static_cast<unsigned char>(text[at + i])] : 0;
      if (value == 64) return std::nullopt;
      word = word << 6 | value;
    }
    for (size_t i = 0; i + 1 < digits; ++i) bytes += static_cast<char>(word >> (16 - 8 * i) & 255);
  }
  return bytes;
}

}  // namespace megalith::data
