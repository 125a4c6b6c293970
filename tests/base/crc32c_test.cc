#include "megalith/base/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace megalith {
namespace {

std::string random_bytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

// Bit by bit, from the definition.
uint32_t slow(const std::string& bytes) {
  uint32_t value = ~uint32_t{0};
  for (const unsigned char byte : bytes) {
    value ^= byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78U : 0);
  }
  return ~value;
}

TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(Crc32c, EveryLengthAroundTheLanes) {
  for (const size_t size : {1, 7, 8, 9, 767, 768, 769, 776, 12287, 12288, 12289, 13060, 100000}) {
    const std::string bytes = random_bytes(size, static_cast<uint32_t>(size));
    EXPECT_EQ(crc32c(bytes), slow(bytes)) << size;
  }
}

TEST(Crc32c, PartsInAnyOrderGiveTheWhole) {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    const std::string bytes = random_bytes(1 + random() % 70000, random());
    uint32_t sum = 0;
    for (size_t from = 0; from < bytes.size();) {
      const size_t part = std::min<size_t>(bytes.size() - from, 1 + random() % 9000);
      sum ^= crc32c_moved(crc32c_register(bytes.data() + from, part), bytes.size() - from - part);
      from += part;
    }
    EXPECT_EQ(crc32c_of_parts(sum, bytes.size()), crc32c(bytes)) << bytes.size();
  }
}

TEST(Crc32c, MovesByLargeDistances) {
  const uint32_t part = crc32c_register("abc", 3);
  uint32_t twice = part;
  for (int i = 0; i < 4; ++i) twice = crc32c_moved(twice, uint64_t{5} << 30);
  EXPECT_EQ(crc32c_moved(part, uint64_t{20} << 30), twice);
}

}  // namespace
}  // namespace megalith
