// The register is a polynomial over GF(2) modulo Castagnoli's, with bit 31 as the coefficient of x^0. Appending a zero
// byte multiplies it by x^8, and appending data adds (xors) the data's own register. Everything below follows from
// these two facts:
//
//   crc32c_moved     multiplies by x^(8 n), which costs one product for each nonzero byte of n
//   three_lanes      computes three registers at once and joins them by such multiplications
//   crc32c_of_parts  adds what the initial register of all ones becomes after n bytes, then inverts all bits
//
// On x86-64 and AArch64 the CRC instruction is used if the processor has it, otherwise a table, one byte at a time.
#include "megalith/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace megalith {
namespace {

// The Castagnoli polynomial 0x1edc6f41 with its bits reversed; kOne is x^0.
constexpr uint32_t kPolynomial = 0x82f63b78;
constexpr uint32_t kOne = uint32_t{1} << 31;

constexpr uint32_t times_x(uint32_t value) { return (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0); }

// Returns a·b, by shift and add.
constexpr uint32_t product(uint32_t a, uint32_t b) {
  uint32_t result = 0;
  for (int bit = 31; bit >= 0; --bit) {
    result ^= b & (0 - ((a >> bit) & 1));
    b = times_x(b);
  }
  return result;
}

// x^(8 n) is the product of one entry per byte of n: entry [d][v] is x^(8 v 256^d).
using Powers = std::array<std::array<uint32_t, 256>, 8>;
const Powers& powers() {
  static const Powers table = [] {
    Powers made{};
    uint32_t step = kOne >> 8;
    for (auto& digit : made) {
      digit[0] = kOne;
      for (size_t v = 1; v < digit.size(); ++v) digit[v] = product(digit[v - 1], step);
      step = product(digit[255], step);
    }
    return made;
  }();
  return table;
}

// Multiplies by a constant with four table lookups, one for each byte of the operand.
class Multiplier {
 public:
  explicit Multiplier(uint32_t constant) {
    for (size_t byte = 0; byte < 4; ++byte)
      for (uint32_t v = 0; v < 256; ++v) table_[byte][v] = product(v << (8 * byte), constant);
  }
  uint32_t operator()(uint32_t v) const {
    return table_[0][v & 0xff] ^ table_[1][(v >> 8) & 0xff] ^ table_[2][(v >> 16) & 0xff] ^ table_[3][v >> 24];
  }

 private:
  std::array<std::array<uint32_t, 256>, 4> table_{};
};

// Entry b is the register after the single byte b.
constexpr std::array<uint32_t, 256> kTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = times_x(value);
    table[byte] = value;
  }
  return table;
}();

// One table lookup per byte, for processors without the instruction.
uint32_t portable(const unsigned char* data, size_t bytes, uint32_t value) {
  for (const unsigned char* end = data + bytes; data < end; ++data)
    value = (value >> 8) ^ kTable[(value ^ *data) & 0xff];
  return value;
}

#if defined(__x86_64__)
#define MEGALITH_CRC_TARGET __attribute__((target("sse4.2")))
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
MEGALITH_CRC_TARGET inline uint64_t crc_word(uint64_t value, uint64_t word) {
  return __builtin_ia32_crc32di(value, word);
}
MEGALITH_CRC_TARGET inline uint32_t crc_byte(uint32_t value, unsigned char byte) {
  return __builtin_ia32_crc32qi(value, byte);
}
#elif defined(__aarch64__)
#define MEGALITH_CRC_TARGET __attribute__((target("+crc")))
bool has_instruction() {
  constexpr unsigned long kCrc32 = 1UL << 7;  // HWCAP_CRC32
  return (::getauxval(AT_HWCAP) & kCrc32) != 0;
}
MEGALITH_CRC_TARGET inline uint64_t crc_word(uint64_t value, uint64_t word) {
  return __builtin_aarch64_crc32cx(static_cast<uint32_t>(value), word);
}
MEGALITH_CRC_TARGET inline uint32_t crc_byte(uint32_t value, unsigned char byte) {
  return __builtin_aarch64_crc32cb(value, byte);
}
#endif

#if defined(MEGALITH_CRC_TARGET)

// An unaligned load; memcpy compiles to one instruction.
inline uint64_t word_at(const unsigned char* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

// The instruction has a latency of three cycles and a throughput of one per cycle, so a single stream would use a third
// of the unit. Three neighboring streams of `Lane` bytes run side by side, a from the register so far, b and c from 0:
//
//   data  |aaaaaaaa|bbbbbbbb|cccccccc|     register = (a·x^(8 Lane) ^ b)·x^(8 Lane) ^ c
template <size_t Lane>
MEGALITH_CRC_TARGET void three_lanes(const unsigned char*& data, size_t& bytes, uint64_t& value) {
  static const Multiplier over_a_lane(crc32c_moved(kOne, Lane));
  for (; bytes >= 3 * Lane; bytes -= 3 * Lane, data += 3 * Lane) {
    uint64_t a = value, b = 0, c = 0;
    for (size_t i = 0; i < Lane; i += 8) {
      a = crc_word(a, word_at(data + i));
      b = crc_word(b, word_at(data + Lane + i));
      c = crc_word(c, word_at(data + 2 * Lane + i));
    }
    value = over_a_lane(over_a_lane(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b)) ^ c;
  }
}

// Long lanes make the joins cheap; short ones take most of what is left, single words and bytes the rest.
MEGALITH_CRC_TARGET uint32_t by_instruction(const unsigned char* data, size_t bytes, uint32_t before) {
  uint64_t value = before;
  three_lanes<4096>(data, bytes, value);
  three_lanes<256>(data, bytes, value);
  for (; bytes >= 8; bytes -= 8, data += 8) value = crc_word(value, word_at(data));
  auto rest = static_cast<uint32_t>(value);
  for (; bytes > 0; --bytes, ++data) rest = crc_byte(rest, *data);
  return rest;
}

#endif

}  // namespace

uint32_t crc32c_register(const void* data, size_t bytes, uint32_t before) {
  const auto* first = static_cast<const unsigned char*>(data);
#if defined(MEGALITH_CRC_TARGET)
  static const bool fast = has_instruction();
  if (fast) return by_instruction(first, bytes, before);
#endif
  return portable(first, bytes, before);
}

uint32_t crc32c_moved(uint32_t part, uint64_t bytes) {
  const Powers& table = powers();
  for (size_t digit = 0; bytes > 0; ++digit, bytes >>= 8)
    if ((bytes & 0xff) != 0) part = product(table[digit][bytes & 0xff], part);
  return part;
}

uint32_t crc32c_of_parts(uint32_t sum, uint64_t bytes) { return ~(sum ^ crc32c_moved(~uint32_t{0}, bytes)); }

uint32_t crc32c(std::string_view bytes) { return ~crc32c_register(bytes.data(), bytes.size(), ~uint32_t{0}); }

}  // namespace megalith
