#include "megalith/base/terminal.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "megalith/base/units.h"

namespace megalith {
namespace {

// The first variable that is set decides, as in the C library.
TEST(Terminal, TheLocaleSaysWhetherItShowsMoreThanAscii) {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) ::unsetenv(name);
  EXPECT_FALSE(shows_unicode());
  ::setenv("LANG", "en_US.UTF-8", 1);
  EXPECT_TRUE(shows_unicode());
  ::setenv("LC_ALL", "C", 1);
  EXPECT_FALSE(shows_unicode());
  ::setenv("LC_ALL", "C.utf8", 1);
  EXPECT_TRUE(shows_unicode());
  for (const char* name : {"LC_ALL", "LANG"}) ::unsetenv(name);
}

TEST(Units, BytesHaveTheNamesOfPowersOf1024) {
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(279'808), "273.2 KiB");
  EXPECT_EQ(bytes_text(5.0 * (1 << 20)), "5.0 MiB");
}

}  // namespace
}  // namespace megalith
