#include "megalith/observe/crc32c.h"

#include <array>

namespace megalith::observe {
namespace {

constexpr std::array<uint32_t, 256> kTable = [] {
  constexpr uint32_t kPolynomial = 0x82f63b78;  // reversed
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    table[byte] = value;
  }
  return table;
}();

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t value = ~uint32_t{0};
  for (const unsigned char byte : bytes) value = (value >> 8) ^ kTable[(value ^ byte) & 0xff];
  return ~value;
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t value = crc32c(bytes);
  return ((value >> 15) | (value << 17)) + 0xa282ead8U;
}

}  // namespace megalith::observe
