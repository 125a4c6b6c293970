#include "megalith/cli/byte_size.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "tests/support/expect.h"

namespace megalith::cli {
namespace {

using testing::expect_error;

TEST(ByteSize, UnitsArePowersOfTenOrOfTwo) {
  EXPECT_EQ(parse_byte_size("size", "5GB"), 5'000'000'000);
  EXPECT_EQ(parse_byte_size("size", "1.5 mb"), 1'500'000);
  EXPECT_EQ(parse_byte_size("size", "64MiB"), 64 << 20);
  EXPECT_EQ(parse_byte_size("size", "2kib"), 2048);
  EXPECT_EQ(parse_byte_size("size", "12B"), 12);
}

TEST(ByteSize, ANumberAloneCountsBytes) { EXPECT_EQ(parse_byte_size("size", "4096"), 4096); }

TEST(ByteSize, AnErrorNamesTheOptionAndTheText) {
  for (const char* text : {"", "GB", "five GB", "-1GB", "0", "0.5", "1e30GB", "5XB", "nan"})
    expect_error<ConfigError>([&] { parse_byte_size("max_shard_size", text); },
                              {"max_shard_size", std::string("\"") + text + "\"", "5GB"});
}

}  // namespace
}  // namespace megalith::cli
