// A name for content: 128 bits, the same on every machine and in every version. Caches on disk are named by it.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace megalith::io {

// Two 64-bit hashes of the XXH64 kind with different seeds, over everything that was added. Not for secrets.
class ContentHash {
 public:
  // Parts are kept apart: ("ab", "c") and ("a", "bc") differ.
  ContentHash& add(std::string_view part);
  ContentHash& add(int64_t number);
  // The bytes of a file, read in pieces. Throws DataError.
  ContentHash& add_file(const std::filesystem::path& path);
  // 32 hexadecimal digits.
  std::string text() const;

 private:
  void mix(std::string_view bytes);
  std::array<uint64_t, 2> state_{0x9E3779B97F4A7C15ULL, 0xC2B2AE3D27D4EB4FULL};
};

}  // namespace megalith::io
