#include "megalith/cli/shell/command_shapes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "megalith/cli/shell/completion_scripts.h"

namespace megalith::cli {
namespace {

bool has_option(const std::vector<OptionShape>& options, const std::string& name) {
  return std::ranges::any_of(
      options, [&](const OptionShape& option) { return std::ranges::find(option.names, name) != option.names.end(); });
}

// Every command answers for its options, so a new command is completed and documented without further work.
TEST(CommandShapes, EveryCommandHasItsOptions) {
  for (const CommandShape& shape : command_shapes()) {
    const std::string name = shape.path.back();
    if (!shape.subcommands.empty() || name == "man" || name == "dashboard") continue;
    EXPECT_TRUE(has_option(shape.own, "help")) << name;
  }
}

TEST(CommandShapes, UsageOfTheDashboardIsRead) {
  const auto shapes = command_shapes();
  const auto dashboard = std::ranges::find(shapes, std::vector<std::string>{"dashboard"}, &CommandShape::path);
  ASSERT_NE(dashboard, shapes.end());
  EXPECT_TRUE(has_option(dashboard->own, "port"));
  const auto report = std::ranges::find(dashboard->own, std::vector<std::string>{"static"}, &OptionShape::names);
  ASSERT_NE(report, dashboard->own.end());
  EXPECT_EQ(report->value, Completes::kFile);
}

// A path option that is renamed in the table would silently lose its completion.
TEST(CommandShapes, PathOptionsExist) {
  const auto train = run_option_shapes(RunOptions::kTrain), pretrain = run_option_shapes(RunOptions::kPretrain);
  const auto commands = command_shapes();
  for (const std::string& name : path_options())
    EXPECT_TRUE(has_option(train, name) || has_option(pretrain, name) ||
                std::ranges::any_of(commands, [&](const CommandShape& shape) { return has_option(shape.own, name); }))
        << name;
}

TEST(CompletionScripts, QuotesAreEscaped) { EXPECT_EQ(single_quoted("it's"), "'it'\\''s'"); }

}  // namespace
}  // namespace megalith::cli
