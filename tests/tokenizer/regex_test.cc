// Oniguruma's expressions on PCRE2. parts_test.cc compares what they match with Oniguruma itself.
#include "megalith/tokenizer/regex/regex_internal.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/tokenizer/text/newer_characters_internal.h"
#include "megalith/tokenizer/text/utf8.h"
#include "tests/support/expect.h"

namespace megalith::tokenizer {
namespace {

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const Regex regex(pattern, "file: field");
  Regex::Matcher matcher(regex, text);
  matcher.start(text);
  std::vector<std::string> result;
  while (const auto match = matcher.next()) result.push_back(text.substr(match->first, match->second - match->first));
  return result;
}

using Texts = std::vector<std::string>;

TEST(Regex, MatchesAreFoundFromLeftToRight) {
  EXPECT_EQ(matches(R"(\p{L}+|\d)", "ab1 漢字2"), (Texts{"ab", "1", "漢字", "2"}));
}

TEST(Regex, EmptyMatchesDoNotFollowAMatchAtOnce) {
  EXPECT_EQ(matches("x*", "axb"), (Texts{"", "x", ""}));
  EXPECT_EQ(matches("", "é"), (Texts{"", ""}));
}

TEST(Regex, AMatcherServesOneTextAfterAnother) {
  const Regex regex("(?<=a)b", "where");
  Regex::Matcher matcher(regex, "");
  matcher.start("ab");
  EXPECT_TRUE(matcher.next().has_value());
  EXPECT_FALSE(matcher.next().has_value());
  matcher.start("b");  // text before it does not count
  EXPECT_FALSE(matcher.next().has_value());
}

void expect_pattern_refused(const std::string& pattern, const std::string& part) {
  try {
    const Regex regex(pattern, "some.json: pre_tokenizer.pattern.Regex");
    ADD_FAILURE() << pattern << " was accepted";
  } catch (const DataError& error) {
    testing::expect_contains(error.what(), "some.json: pre_tokenizer.pattern.Regex");
    testing::expect_contains(error.what(), part);
  }
}

TEST(Regex, WhatDoesNotCompileIsNamedWithItsPlace) {
  expect_pattern_refused("a(b", "a group is not closed");
  expect_pattern_refused("ab)", "was not opened");
  expect_pattern_refused("[ab", "a class is not closed");
  expect_pattern_refused("*a", "nothing to repeat");
  expect_pattern_refused("a|*", "nothing to repeat");
  expect_pattern_refused("[b-a]", "ends before it begins");
  expect_pattern_refused("[a-\\d]", "a range ends with a set");
  expect_pattern_refused("\\", "ends with a backslash");
  expect_pattern_refused("\\p{L", "property is not closed");
  expect_pattern_refused("\\p{NoSuchScript}", "does not compile");
  expect_pattern_refused("\\x{110000}", "not a character");
  expect_pattern_refused("\\xFF", "not valid UTF-8");
  expect_pattern_refused("(?~abc)", "not supported");
  expect_pattern_refused("(?x: a)", "not supported");
  expect_pattern_refused("\\X", "not supported");
  expect_pattern_refused("(?<name", "not closed");
  expect_pattern_refused(std::string(300, '('), "not closed");
  expect_pattern_refused("[" + std::string(300, '['), "nested too deeply");
  expect_pattern_refused(std::string(400, '(') + std::string(400, ')'), "does not compile");
}

TEST(Regex, AnExpressionThatWouldRunForeverIsStopped) {
  const Regex regex("(a+)+$|(a|aa)+b", "some.json: field");
  const std::string text(5000, 'a');
  Regex::Matcher matcher(regex, text + "c");
  const std::string subject = text + "c";
  matcher.start(subject);
  try {
    while (matcher.next()) continue;
    FAIL() << "it ran to its end";
  } catch (const DataError& error) {
    testing::expect_contains(error.what(), "some.json: field");
    testing::expect_contains(error.what(), "too many steps");
  }
}

TEST(Regex, CharactersOfUnicode16AreKnown) {
  // CJK extensions H and I (letters), Garay digits, a Kawi vowel sign (mark), a Balinese sign (punctuation).
  EXPECT_EQ(matches(R"(\p{L}+)", "a\U00031350\U0002EBF0b"), (Texts{"a\U00031350\U0002EBF0b"}));
  EXPECT_EQ(matches(R"(\p{Nd}+)", "1\U00010D40"), (Texts{"1\U00010D40"}));
  EXPECT_EQ(matches(R"(\d)", "\U00010D40"), (Texts{"\U00010D40"}));
  EXPECT_EQ(matches(R"(\D)", "\U00010D40"), (Texts{}));
  EXPECT_EQ(matches(R"([^\s\p{L}\p{N}]+)", "\u1B4E\U00010D40!"), (Texts{"\u1B4E", "!"}));
  EXPECT_EQ(matches(R"(\w+)", "a\U00011F34"), (Texts{"a\U00011F34"}));
  EXPECT_EQ(matches(R"(\p{Han}+)", "漢\U00031350"), (Texts{"漢\U00031350"}));
  EXPECT_FALSE(has_newer_characters("aé漢😀"));
  EXPECT_TRUE(has_newer_characters("aé漢\U00031350"));
  EXPECT_EQ(newer_category(0x31350), "Lo");
  EXPECT_EQ(newer_category(0x323B0), "");
}

}  // namespace
}  // namespace megalith::tokenizer
