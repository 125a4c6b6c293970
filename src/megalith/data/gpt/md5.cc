// MD5 is written out here because Megatron's cache names need it and nothing else does: a dependency on a crypto
// library would be out of proportion. Texts are some kilobytes long, so speed does not matter.
#include "megalith/data/gpt/md5.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace megalith::data {

namespace {

using State = std::array<uint32_t, 4>;

// Rotations by round and step modulo 4; the additive constants are floor(2^32 |sin(i + 1)|) (RFC 1321, section 3.4).
constexpr int kRotations[4][4] = {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};

std::array<uint32_t, 64> make_constants() {
  std::array<uint32_t, 64> constants;
  for (size_t i = 0; i < 64; ++i)
    constants[i] = static_cast<uint32_t>(std::floor(std::fabs(std::sin(static_cast<double>(i + 1))) * 4294967296.0));
  return constants;
}

// Step i: the round function of three words, and the index of the block's word that is added.
struct Mixed {
  uint32_t value;
  size_t word;
};
Mixed mix(size_t i, uint32_t b, uint32_t c, uint32_t d) {
  switch (i / 16) {
    case 0:
      return {(b & c) | (~b & d), i};
    case 1:
      return {(d & b) | (~d & c), (5 * i + 1) % 16};
    case 2:
      return {b ^ c ^ d, (3 * i + 5) % 16};
    default:
      return {c ^ (b | ~d), 7 * i % 16};
  }
}

// Processes one block of 64 bytes.
void add_block(State& state, const char* block, const std::array<uint32_t, 64>& constants) {
  uint32_t words[16];
  std::memcpy(words, block, sizeof words);
  auto [a, b, c, d] = state;
  for (size_t i = 0; i < 64; ++i) {
    const Mixed mixed = mix(i, b, c, d);
    const uint32_t sum = a + mixed.value + constants[i] + words[mixed.word];
    a = d;
    d = c;
    c = b;
    b += std::rotl(sum, kRotations[i / 16][i % 4]);
  }
  state[0] += a;
  state[1] += b;
  state[2] += c;
  state[3] += d;
}

}  // namespace

std::string md5_hex(std::string_view text) {
  static_assert(std::endian::native == std::endian::little, "words are read in the machine's order");
  const auto constants = make_constants();
  // Padding: a 1 bit, zeros to 56 modulo 64 bytes, the length in bits.
  std::string padded(text);
  padded += '\x80';
  padded.resize((padded.size() + 8 + 63) / 64 * 64 - 8, '\0');
  const uint64_t bits = text.size() * 8;
  padded.append(reinterpret_cast<const char*>(&bits), 8);
  State state{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
  for (size_t at = 0; at < padded.size(); at += 64) add_block(state, padded.data() + at, constants);
  std::string digest;
  // The digest is the state in little-endian bytes, and hexadecimal digits show the high half of a byte first.
  for (const uint32_t word : state) digest += fmt::format("{:08x}", __builtin_bswap32(word));
  return digest;
}

}  // namespace megalith::data
