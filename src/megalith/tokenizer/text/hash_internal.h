// A fast hash for short byte strings and pairs of ids. For tables in memory only: its values may change between
// versions and machines, so they must never be stored. Inputs are vocabularies, not attackers' keys, hence no secret
// seed.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace megalith::tokenizer {

// Two xor-shifts around a multiplication by 2^64 / golden ratio: every input bit reaches the upper output bits.
constexpr uint64_t mix_bits(uint64_t value) {
  value ^= value >> 32;
  value *= 0x9E3779B97F4A7C15u;
  value ^= value >> 29;
  return value;
}

// 8 bytes per round; the length is the seed, so that zero padding of the last word does not matter.
inline uint64_t hash_bytes(std::string_view text) {
  // Odd constants with well-mixed bits, as in wyhash and its relatives.
  uint64_t hash = text.size() * 0xD6E8FEB86659FD93u;
  const char* at = text.data();
  size_t left = text.size();
  for (; left >= 8; left -= 8, at += 8) {
    // Eight bytes at a time, by memcpy: the text need not be aligned.
    uint64_t word = 0;
    std::memcpy(&word, at, 8);
    hash = mix_bits(hash ^ word) * 0xA0761D6478BD642Fu;
  }
  uint64_t word = 0;
  if (left > 0) std::memcpy(&word, at, left);
  return mix_bits(hash ^ word);
}

}  // namespace megalith::tokenizer
