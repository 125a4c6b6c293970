#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/config/foreign_options_internal.h"
#include "megalith/config/option_table.h"
#include "tests/config/parse_support.h"

namespace megalith::config {
namespace {

Option own_option(const char* name, const char* topic) {
  Option option;
  option.name = name;
  option.topic = topic;
  return option;
}

std::vector<Option> two_topics() { return {own_option("a1", "A"), own_option("a2", "A"), own_option("b1", "B")}; }

Words names_with(const std::string& text) {
  Words names;
  for (const Option& option : with_foreign_options(two_topics(), text)) names.push_back(option.name);
  return names;
}

// The message of the InternalError that a table with `text` must end with; "" when there is none.
std::string problem_with(const std::string& text) {
  try {
    const OptionTable table(with_foreign_options(two_topics(), text));
    return "";
  } catch (const InternalError& error) {
    return error.what();
  }
}

TEST(ForeignOptions, TheFileIsCompiledIn) {
  std::ifstream file("src/megalith/config/foreign_options.txt");
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == foreign_options_txt) << "the build holds another foreign_options.txt";
}

TEST(ForeignOptions, NoneHasAConsumer) {
  int count = 0;
  for (const std::string& line : split(foreign_options_txt, '\n')) {
    if (line.empty() || line.starts_with('#') || line.starts_with('[')) continue;
    const auto match = OptionTable::instance().find(line.substr(0, line.find_first_of(", ")));
    ASSERT_TRUE(match) << line;
    EXPECT_FALSE(match->option->write) << line << "\nis bound: it belongs in options/*.cc";
    ++count;
  }
  EXPECT_GT(count, 300);
}

TEST(ForeignOptions, ALineIsAnOption) {
  const auto options = with_foreign_options({}, R"(# a comment

[Topic]
number,other_name  int    -1    ignored  it is; what to do
ratio              float  1     refused  no
words              list   none  ignored  no
object             JSON   none  ignored  no
empty              text   ""    ignored  no
flag               bool   true  ignored  no
)");
  ASSERT_EQ(options.size(), 6U);
  EXPECT_EQ(options[0].name, "number");
  EXPECT_EQ(options[0].aliases, Words{"other_name"});
  EXPECT_EQ(options[0].topic, "Topic");
  EXPECT_EQ(options[0].type, ValueType::kInt);
  EXPECT_EQ(options[0].train_default, Value(int64_t{-1}));
  EXPECT_EQ(options[0].pretrain_default, Value(int64_t{-1}));
  EXPECT_FALSE(options[0].optional);
  EXPECT_EQ(options[0].status, OptionStatus::kNoEffect);
  EXPECT_EQ(options[0].reason, "it is; what to do");
  EXPECT_EQ(options[1].train_default, Value(1.0));
  EXPECT_EQ(options[1].status, OptionStatus::kRefused);
  EXPECT_EQ(options[2].type, ValueType::kTextList);
  EXPECT_TRUE(options[2].optional);
  EXPECT_EQ(options[2].train_default, Value());
  EXPECT_EQ(options[3].type, ValueType::kDict);
  EXPECT_EQ(options[4].train_default, Value(std::string()));
  EXPECT_EQ(options[5].train_default, Value(true));
}

TEST(ForeignOptions, SectionsSayWhereOptionsStand) {
  const std::string line = " bool false ignored reason\n";
  EXPECT_EQ(names_with("[A]\nx" + line + "y" + line), (Words{"a1", "a2", "x", "y", "b1"}));
  EXPECT_EQ(names_with("[A, after a1]\nx" + line + "[A]\ny" + line), (Words{"a1", "x", "a2", "y", "b1"}));
  EXPECT_EQ(names_with("[C]\nx" + line), (Words{"a1", "a2", "b1", "x"})) << "a topic of its own comes last";
}

TEST(ForeignOptions, MistakesAreNamed) {
  EXPECT_EQ(problem_with("[A]\nx bool false ignored reason\n"), "");
  EXPECT_TRUE(contains(problem_with("[A]\n\nx bool false ignord reason\n"), "foreign_options.txt:3: the status"));
  EXPECT_TRUE(contains(problem_with("[A]\nx bool false ignored\n"), "foreign_options.txt:2: the reason is missing"));
  EXPECT_TRUE(contains(problem_with("[A]\nx boolean false ignored reason\n"), "foreign_options.txt:2: the type"));
  EXPECT_TRUE(contains(problem_with("[A]\nx int 1e3 ignored reason\n"), "the default of x is not a whole number"));
  EXPECT_TRUE(contains(problem_with("[A]\nx\n"), "the type"));
  EXPECT_TRUE(contains(problem_with("x bool false ignored reason\n"), "before the first [topic]"));
  EXPECT_TRUE(contains(problem_with("[A\n"), "a section is written [topic]"));
  EXPECT_TRUE(
      contains(problem_with("[A, after b1]\nx bool false ignored reason\n"), "b1 is not an option of the topic A"));
}

TEST(ForeignOptions, NamesAreUnique) {
  EXPECT_TRUE(contains(problem_with("[A]\nx bool false ignored r\nx bool false refused r\n"), "name x is used twice"));
  EXPECT_TRUE(
      contains(problem_with("[A]\nx,y bool false ignored r\ny bool false ignored r\n"), "name y is used twice"));
  EXPECT_TRUE(contains(problem_with("[A]\nb1 bool false ignored r\n"), "name b1 is used twice")) << "an own option";
}

}  // namespace
}  // namespace megalith::config
