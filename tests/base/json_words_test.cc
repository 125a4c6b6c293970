#include "megalith/base/json_words.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

TEST(JsonWords, NamesOfExceptionsAreLeftOut) {
  EXPECT_EQ(without_exception_name("[json.exception.parse_error.101] parse error at line 1, column 2: x] y"),
            "parse error at line 1, column 2: x] y");
  EXPECT_EQ(without_exception_name("[json.exception.type_error.302] type must be string"), "type must be string");
  // Other texts stay as they are.
  EXPECT_EQ(without_exception_name("[3] is an index"), "[3] is an index");
  EXPECT_EQ(without_exception_name(""), "");
}

}  // namespace
}  // namespace megalith
