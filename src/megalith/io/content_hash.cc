// Reads 8 bytes at a time into two lanes, in the manner of XXH64. The constants are on disk, as names of cache
// folders, and may not change.
#include "megalith/io/content_hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>

#include "megalith/base/error.h"

namespace megalith::io {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87ULL;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4FULL;

// Final mixing as in XXH64: spreads the last words over all bits.
uint64_t finish(uint64_t value) {
  value = (value ^ (value >> 33)) * kPrime2;
  value = (value ^ (value >> 29)) * kPrime1;
  return value ^ (value >> 32);
}

}  // namespace

void ContentHash::mix(std::string_view bytes) {
  while (!bytes.empty()) {
    uint64_t word = 0;  // little-endian on every machine
    const size_t count = std::min<size_t>(8, bytes.size());
    if constexpr (std::endian::native == std::endian::little)
      std::memcpy(&word, bytes.data(), count);
    else
      for (size_t i = 0; i < count; ++i) word |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    // Two lanes with exchanged primes and different rotations, so that a collision in one says nothing about the other.
    state_[0] = std::rotl(state_[0] ^ (std::rotl(word * kPrime2, 31) * kPrime1), 27) * kPrime1 + 0x85EBCA77C2B2AE63ULL;
    state_[1] = std::rotl(state_[1] ^ (std::rotl(word * kPrime1, 29) * kPrime2), 25) * kPrime2 + 0x27D4EB2F165667C5ULL;
    bytes.remove_prefix(count);
  }
}

// The length follows the bytes, which keeps parts apart and zero padding of the last word unambiguous.
ContentHash& ContentHash::add(std::string_view part) {
  mix(part);
  return add(static_cast<int64_t>(part.size()));
}

// Written byte by byte from the lowest, so that big-endian machines get the same name.
ContentHash& ContentHash::add(int64_t number) {
  std::array<char, 8> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(static_cast<uint64_t>(number) >> (8 * i));
  mix({bytes.data(), bytes.size()});
  return *this;
}

ContentHash& ContentHash::add_file(const std::filesystem::path& path, const std::function<void(int64_t bytes)>& read) {
  std::ifstream file(path, std::ios::binary);
  check<DataError>(file.good(), "cannot read {}", path.string());
  std::string chunk(size_t{1} << 20, '\0');  // a multiple of 8, so that chunks do not change the hash
  int64_t total = 0;
  while (file.read(chunk.data(), std::ssize(chunk)) || file.gcount() > 0) {
    mix({chunk.data(), static_cast<size_t>(file.gcount())});
    total += file.gcount();
    if (read) read(file.gcount());
  }
  check<DataError>(file.eof(), "cannot read {}", path.string());
  return add(total);
}

std::string ContentHash::text() const { return fmt::format("{:016x}{:016x}", finish(state_[0]), finish(state_[1])); }

}  // namespace megalith::io
