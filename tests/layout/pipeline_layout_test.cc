#include "megalith/layout/pipeline_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"

namespace megalith::layout {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> parsed(std::string_view text) { return PipelineLayout::parse(text).stages(); }

std::string layout_error(std::string_view text) {
  try {
    PipelineLayout::parse(text);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(PipelineLayout, RepeatsCharactersAndGroups) {
  EXPECT_THAT(parsed("Et*3|t*3L"), ElementsAre("Ettt", "tttL"));
  EXPECT_THAT(parsed("E(tt|)*2m|L"), ElementsAre("Ett", "tt", "m", "L"));
  EXPECT_THAT(parsed("(|ab)*0EL"), ElementsAre("EL"));
  EXPECT_THAT(parsed("E(t*2|)*2t*0L"), ElementsAre("Ett", "tt", "L"));
  EXPECT_THAT(parsed("Et|*3L"), ElementsAre("Et", "", "", "L"));
  EXPECT_EQ(parsed("Et*3|(tt|)*29,m|L").size(), 32U);
}

TEST(PipelineLayout, CommasAreCosmetic) {
  EXPECT_EQ(parsed("E,t,*,2|,L"), parsed("Ett|L"));
  EXPECT_THAT(parsed(""), ElementsAre(""));
  EXPECT_THAT(parsed("|"), ElementsAre("", ""));
}

TEST(PipelineLayout, OtherCharactersAreNamed) {
  EXPECT_THAT(layout_error("Etx|L"), HasSubstr("contains 'x'"));
  EXPECT_THAT(layout_error("E t|L"), HasSubstr("contains a blank"));
  EXPECT_THAT(layout_error("E(t|L"), HasSubstr("contains '('"));
  EXPECT_THAT(layout_error("E((t)*2)*2L"), HasSubstr("not nested"));
  EXPECT_THAT(layout_error("E()*2L"), HasSubstr("contains '('"));
  EXPECT_THAT(layout_error("Et*2*3L"), HasSubstr("contains '*'"));
  EXPECT_THAT(layout_error("Et*L"), HasSubstr("contains '*'"));
}

TEST(PipelineLayout, AbsurdRepetitionsDoNotEatMemory) {
  EXPECT_THAT(layout_error("Et*99999999999999999999L"), HasSubstr("no model has so many layers"));
  EXPECT_THAT(layout_error("E(t*9999999|)*9999999L"), HasSubstr("more than"));
}

TEST(PipelineLayout, ListsOfNames) {
  const std::vector<std::vector<std::string>> names{{"embedding", " Decoder "}, {}, {"mtp", "loss"}};
  EXPECT_THAT(PipelineLayout::from_names(names).stages(), ElementsAre("Et", "", "mL"));
  const std::vector<std::vector<std::string>> encoder{{"encoder"}};
  EXPECT_THROW(PipelineLayout::from_names(encoder), ConfigError);
  EXPECT_THROW(PipelineLayout::from_names({}), ConfigError);
}

TEST(PipelineLayout, TextReadsBack) {
  for (const char* text : {"Ettt|tttttL", "E|t*12|t*4|L", "Ett||tt|L", "", "|||", "Et*30|(tt|)*5,mmL"}) {
    const PipelineLayout layout = PipelineLayout::parse(text);
    EXPECT_EQ(parsed(layout.text()), layout.stages()) << text;
  }
  EXPECT_EQ(PipelineLayout::parse("Ett|t*5L").text(), "Ett|t*5L");
}

}  // namespace
}  // namespace megalith::layout
