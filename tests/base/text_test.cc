#include "megalith/base/text.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

TEST(Text, ListInWords) {
  const std::vector<std::string> items{"a", "b", "c"};
  EXPECT_EQ(list_in_words(items), "a, b and c");
  EXPECT_EQ(list_in_words(std::span(items).first(1)), "a");
  EXPECT_EQ(list_in_words(std::span(items).first(0)), "none");
  EXPECT_EQ(list_in_words(items, 2), "a, b, … (3 in all)");
}

TEST(Text, Split) {
  EXPECT_EQ(split("a,,b", ','), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(split("", ','), std::vector<std::string>{""});
}

TEST(Text, FirstLineEndsBeforeTheBreak) {
  EXPECT_EQ(first_line("what happened\nstack\nmore"), "what happened");
  EXPECT_EQ(first_line("one line"), "one line");
  EXPECT_EQ(first_line("\nrest"), "");
}

TEST(Text, NumbersAreReadAsPythonReadsThem) {
  EXPECT_EQ(parse_int("-12"), -12);
  EXPECT_EQ(parse_int("+5"), 5);
  for (const char* two_signs : {"+-5", "++5", "-+5", "--5", "+"}) {
    EXPECT_EQ(parse_int(two_signs), std::nullopt) << two_signs;
    EXPECT_EQ(parse_double(two_signs), std::nullopt) << two_signs;
  }
  EXPECT_EQ(parse_int("1e3"), std::nullopt);
  EXPECT_EQ(parse_int("1.0"), std::nullopt);
  EXPECT_EQ(parse_int(""), std::nullopt);
  EXPECT_EQ(parse_double(".001"), 0.001);
  EXPECT_EQ(parse_double("6.0e-5"), 6.0e-5);
  EXPECT_EQ(parse_double("1x"), std::nullopt);
}

TEST(Text, EditDistanceCountsASwapOnce) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("learnign_rate", "learning_rate"), 1u);
}

TEST(Text, NearestFindsTyposAndNothingElse) {
  const std::vector<std::string> names{"learning_rate", "learning_rate_decay", "bf16", "seed"};
  EXPECT_EQ(nearest("learnign_rate", names).at(0), "learning_rate");
  EXPECT_TRUE(nearest("completely_other", names).empty());
}

}  // namespace
}  // namespace megalith
