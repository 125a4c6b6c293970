// The parts of the template engine, one by one: literals, tokens, the parser, and Python's methods of texts. Whole
// templates: jinja_test.cc.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/tokenizer/jinja/lexer.h"
#include "megalith/tokenizer/jinja/parser.h"
#include "megalith/tokenizer/jinja/string_literal.h"
#include "megalith/tokenizer/jinja/text_search.h"
#include "megalith/tokenizer/jinja/tree.h"
#include "tests/support/expect.h"

namespace megalith::tokenizer::jinja {
namespace {

using testing::expect_error;
using Texts = std::vector<std::string>;

TEST(StringLiteral, ResolvesTheEscapesOfPython) {
  std::string problem;
  EXPECT_EQ(unescape_string(R"(a\n\t\'\"\\)", problem), "a\n\t'\"\\");
  EXPECT_EQ(unescape_string(R"(\x41\101\u00e9\U0001F600)", problem), "AA\u00e9\U0001F600");
  EXPECT_EQ(unescape_string(R"(\d\ )", problem), R"(\d\ )");  // unknown ones stay
  EXPECT_EQ(unescape_string("one\\\ntwo", problem), "onetwo");
  EXPECT_EQ(problem, "");
}

TEST(StringLiteral, AnEscapeThatIsCutOffOrNotACharacterHasAReason) {
  for (const char* text : {R"(\x4)", R"(\u12)", R"(\ud800)", R"(\U00110000)", R"(\N{DASH})"}) {
    std::string problem;
    EXPECT_EQ(unescape_string(text, problem), std::nullopt) << text;
    EXPECT_NE(problem, "") << text;
  }
}

TEST(StringLiteral, NumbersHaveABase) {
  EXPECT_EQ(parse_based_int("ff", 16), 255);
  EXPECT_EQ(parse_based_int("1010", 2), 10);
  EXPECT_EQ(parse_based_int("9223372036854775807", 10), INT64_MAX);
  for (const char* text : {"", "-1", "12x", "9223372036854775808"}) EXPECT_EQ(parse_based_int(text, 10), std::nullopt);
}

TEST(TextSearch, SplitsAsPythonDoes) {
  EXPECT_EQ(split_text("  a  b c ", std::nullopt, -1, false), (Texts{"a", "b", "c"}));
  EXPECT_EQ(split_text("a,,b", ",", -1, false), (Texts{"a", "", "b"}));
  EXPECT_EQ(split_text("a,b,c", ",", 1, false), (Texts{"a", "b,c"}));
  EXPECT_EQ(split_text("a,b,c", ",", 1, true), (Texts{"a,b", "c"}));
  EXPECT_EQ(split_text("", ",", -1, false), (Texts{""}));
}

TEST(TextSearch, ReplacesAndCountsWithoutOverlap) {
  EXPECT_EQ(replaced("aaaa", "aa", "b", -1), "bb");
  EXPECT_EQ(replaced("aaaa", "a", "b", 2), "bbaa");
  EXPECT_EQ(occurrences("aaaaa", "aa"), 2);
  EXPECT_EQ(padded("ab", 5, ".", Alignment::kLeft), "ab...");
  EXPECT_EQ(padded("ab", 5, ".", Alignment::kRight), "...ab");
}

TEST(Lexer, SplitsTextAndTheContentsOfBraces) {
  const std::vector<Token> tokens = tokenize("Hi {{ user['n'] + 12 }}!", "greeting");
  using Kind = Token::Kind;
  const std::vector<Kind> kinds{Kind::kText,        Kind::kVariableBegin, Kind::kName,     Kind::kOperator,
                                Kind::kString,      Kind::kOperator,      Kind::kOperator, Kind::kInteger,
                                Kind::kVariableEnd, Kind::kText,          Kind::kEnd};
  ASSERT_EQ(tokens.size(), kinds.size());
  for (size_t i = 0; i < kinds.size(); ++i) EXPECT_EQ(tokens[i].kind, kinds[i]) << i;
  EXPECT_EQ(tokens[0].text, "Hi ");
  EXPECT_TRUE(tokens[2].is_name("user"));
  EXPECT_EQ(tokens[4].text, "n");
  EXPECT_TRUE(tokens[5].is_operator("]"));
  EXPECT_EQ(tokens[7].integer, 12);
}

TEST(Lexer, RemovesCommentsAndTheLineBreakAfterABlock) {
  const std::vector<Token> tokens = tokenize("a{# gone #}b\n  {% if x %}\nc", "blocks");
  std::string text;
  for (const Token& token : tokens)
    if (token.kind == Token::Kind::kText) text += token.text + "|";
  EXPECT_EQ(text.find("gone"), std::string::npos);
  EXPECT_NE(text.find("c|"), std::string::npos);
  EXPECT_EQ(text.find("\nc"), std::string::npos);
}

TEST(Parser, KeepsTheNamesOfATemplate) {
  const Tree tree = parse_template("{% for m in messages %}{{ m.role }}{% endfor %}", "chat");
  EXPECT_NE(std::ranges::find(tree.names, "messages"), tree.names.end());
}

TEST(Parser, AnErrorHasTheNameAndTheLine) {
  expect_error<DataError>([] { parse_template("a\n{{ 1 + }}", "broken"); }, {"broken", "2"});
  expect_error<DataError>([] { parse_template("{% if x %}", "open"); }, {"open"});
}

}  // namespace
}  // namespace megalith::tokenizer::jinja
