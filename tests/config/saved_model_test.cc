#include "megalith/config/saved_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/config/parse_support.h"

namespace megalith::config {
namespace {

// Returns the values that a run with these words takes from a run that was saved with `saved`.
std::vector<std::string> taken(const Words& saved, const Words& words) {
  ParseResult run = parse(words, Dialect::kPretrain);
  return take_model_of(args_of(saved, Dialect::kPretrain), run.report, run.args);
}

TEST(SavedModel, TheShapeIsTaken) {
  const std::vector<std::string> values = taken({"--num-layers", "24", "--hidden-size", "1024"}, {});
  EXPECT_EQ(std::ranges::count(values, "num_layers 24"), 1);
  EXPECT_EQ(std::ranges::count(values, "hidden_size 1024"), 1);
}

TEST(SavedModel, AGivenOptionKeepsItsValue) {
  const std::vector<std::string> values =
      taken({"--num-layers", "24", "--hidden-size", "1024"}, {"--num-layers", "12"});
  EXPECT_EQ(std::ranges::count(values, "num_layers 24"), 0);
  EXPECT_EQ(std::ranges::count(values, "hidden_size 1024"), 1);
}

TEST(SavedModel, OptionsOfTheTrainingAreNotTaken) {
  EXPECT_TRUE(taken({"--lr", "0.5", "--train-iters", "10"}, {}).empty());
}

}  // namespace
}  // namespace megalith::config
