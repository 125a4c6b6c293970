// Checksums of a file from parts that come in any order, against those of the whole text.
#include "megalith/checkpoint/chunk_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/crc32c.h"
#include "megalith/base/error.h"
#include "megalith/checkpoint/manifest.h"

namespace megalith::checkpoint {
namespace {

std::string some_bytes(uint64_t size) {
  std::string bytes(size, '\0');
  uint32_t state = 1;
  for (char& byte : bytes) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}

// Adds bytes [begin, end) of the file.
void add(ChunkSums& sums, std::string_view file, uint64_t begin, uint64_t end) {
  sums.add(begin, reinterpret_cast<const std::byte*>(file.data()) + begin, end - begin);
}

std::vector<uint32_t> sums_of_whole_chunks(std::string_view file) {
  std::vector<uint32_t> sums;
  for (uint64_t begin = 0; begin < file.size(); begin += kChunkBytes)
    sums.push_back(crc32c(file.substr(begin, kChunkBytes)));
  return sums;
}

TEST(ChunkSums, PartsInAnyOrderGiveTheSumsOfTheFile) {
  const std::string file = some_bytes(2 * kChunkBytes + 1000);
  ChunkSums sums(file.size());
  const std::vector<uint64_t> cuts{0, 7, kChunkBytes - 3, kChunkBytes + 5, 2 * kChunkBytes, file.size()};
  for (size_t i = cuts.size() - 1; i > 0; --i) add(sums, file, cuts[i - 1], cuts[i]);
  EXPECT_EQ(sums.crc32c(), sums_of_whole_chunks(file));
}

TEST(ChunkSums, RanksCombineTheirPartsByExclusiveOr) {
  const std::string file = some_bytes(kChunkBytes + 4096);
  ChunkSums first(file.size()), second(file.size());
  add(first, file, 100, 200);
  add(first, file, kChunkBytes - 50, file.size());
  add(second, file, 0, 100);
  add(second, file, 200, kChunkBytes - 50);
  std::ranges::transform(first.parts(), second.parts(), first.parts().begin(), std::bit_xor<>());
  EXPECT_EQ(first.crc32c(), sums_of_whole_chunks(file));
}

TEST(ChunkSums, BytesThatAreMissingOrWrittenTwiceChangeTheSum) {
  const std::string file = some_bytes(1000);
  ChunkSums missing(file.size()), twice(file.size());
  add(missing, file, 0, 999);
  add(twice, file, 0, 1000);
  add(twice, file, 10, 20);
  EXPECT_NE(missing.crc32c(), sums_of_whole_chunks(file));
  EXPECT_NE(twice.crc32c(), sums_of_whole_chunks(file));
}

TEST(ChunkSums, AnEmptyFileHasNoChunks) { EXPECT_TRUE(ChunkSums(0).crc32c().empty()); }

TEST(ChunkSums, BytesBeyondTheEndAreRefused) {
  const std::string file = some_bytes(10);
  ChunkSums sums(8);
  EXPECT_THROW(add(sums, file, 0, 9), Error);
  EXPECT_THROW(add(sums, file, 9, 10), Error);
}

}  // namespace
}  // namespace megalith::checkpoint
