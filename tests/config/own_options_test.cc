#include "megalith/config/own_options.h"

#include <gtest/gtest.h>

namespace megalith::config {
namespace {

// Only the options that the command adds, and nothing is parsed.
TEST(OwnOptions, AreThrownWhenAskedFor) {
  bool json = false;
  std::optional<std::string> folder;
  const std::vector<CommandOption> own{{"json", "print JSON", &json}, {"folder", "where", &folder}};
  const std::vector<std::string> words{std::string(kAskForOwnOptions)};
  try {
    parse_arguments(Dialect::kTrain, words, own);
    FAIL() << "nothing was thrown";
  } catch (const OwnOptions& answer) {
    ASSERT_EQ(answer.options().size(), 2u);
    EXPECT_EQ(answer.options()[1].name, "folder");
    EXPECT_TRUE(std::holds_alternative<bool*>(answer.options()[0].target));
  }
  EXPECT_FALSE(json);
}

}  // namespace
}  // namespace megalith::config
