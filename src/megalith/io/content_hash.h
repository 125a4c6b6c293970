// A 128-bit name for content, the same on every machine and in every version. Names caches on disk.
//
//   const std::string key = ContentHash().add("tokens v3").add(cutoff).add_file("tokenizer.json").text();
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace megalith::io {

// Two 64-bit hashes in the style of XXH64 with different seeds, over everything that was added. Not cryptographic. The
// constants may not change, since files on disk are named by the result.
class ContentHash {
 public:
  // Boundaries between parts count: ("ab", "c") and ("a", "bc") differ.
  ContentHash& add(std::string_view part);
  ContentHash& add(int64_t number);
  // Adds the bytes of a file, read in chunks; `read` is called with the size of each. Throws DataError.
  ContentHash& add_file(const std::filesystem::path& path, const std::function<void(int64_t bytes)>& read = {});
  // Returns 32 hexadecimal digits.
  std::string text() const;

 private:
  void mix(std::string_view bytes);
  std::array<uint64_t, 2> state_{0x9E3779B97F4A7C15ULL, 0xC2B2AE3D27D4EB4FULL};
};

}  // namespace megalith::io
