#include "megalith/tokenizer/text/base64_internal.h"

#include <array>
#include <cstdint>

namespace megalith::tokenizer {

std::optional<std::string> decode_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<int, 256> values{};
  values.fill(-1);
  for (size_t i = 0; i < kDigits.size(); ++i) values[static_cast<unsigned char>(kDigits[i])] = static_cast<int>(i);
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string result;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int value = values[static_cast<unsigned char>(c)];
    if (value < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    result += static_cast<char>(bits >> count & 0xFF);
  }
  return result;
}

}  // namespace megalith::tokenizer
