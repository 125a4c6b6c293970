#include "megalith/config/help_and_yaml.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/config/option_table.h"
#include "tests/config/parse_support.h"

namespace megalith::config {
namespace {

constexpr const char* kOptionsPage = "docs/options.md";

TEST(Documents, OptionsPageIsTheTable) {
  if (env_flag("MEGALITH_UPDATE_DOCS")) std::ofstream(kOptionsPage) << options_markdown();
  std::ifstream file(kOptionsPage);
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == options_markdown())
      << kOptionsPage << " differs from the option table; write it again: MEGALITH_UPDATE_DOCS=1 ctest -R Documents";
}

// Python programs complete option names from this file.
TEST(Documents, PythonStubIsTheTable) {
  constexpr const char* kStub = "python/megalith/arguments.pyi";
  if (env_flag("MEGALITH_UPDATE_DOCS")) std::ofstream(kStub) << python_stub();
  std::ifstream file(kStub);
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == python_stub())
      << kStub << " differs from the option table; write it again: MEGALITH_UPDATE_DOCS=1 ctest -R Documents";
  for (const Option& option : OptionTable::instance().options())
    EXPECT_TRUE(contains(python_stub(), fmt::format("\n        {}: ", option.name))) << option.name;
}

// Whether a help text has an entry for the option.
bool lists(const std::string& help, const Option& option) {
  const std::string entry = "\n  --" + option.name;
  return contains(help, entry + ",") || contains(help, entry + " ");
}

TEST(Documents, HelpListsWhatActsAndHelpAllEveryOptionOfTheDialect) {
  const std::string train = help_text(Dialect::kTrain);
  const std::string all = help_text(Dialect::kTrain, std::nullopt, {}, HelpScope::kAll);
  const std::string pretrain = help_text(Dialect::kPretrain);
  int left_out = 0;
  for (const Option& option : OptionTable::instance().options()) {
    const bool acts = option.status == OptionStatus::kImplemented || option.status == OptionStatus::kPlanned;
    EXPECT_EQ(lists(train, option), option.in_train && acts) << option.name;
    EXPECT_EQ(lists(all, option), option.in_train) << option.name;
    left_out += option.in_train && !acts ? 1 : 0;
  }
  EXPECT_TRUE(contains(train, fmt::format("{} more options are accepted without effect or refused", left_out)));
  EXPECT_FALSE(contains(all, "more options"));
  EXPECT_TRUE(contains(pretrain, "--tensor-model-parallel-size, --tp"));
  EXPECT_TRUE(contains(train, "--tensor_model_parallel_size, --tp"));
}

TEST(Documents, HelpOfOneTopic) {
  const std::string text = help_text(Dialect::kTrain, "parallel");
  EXPECT_TRUE(contains(text, "--context_parallel_size"));
  EXPECT_EQ(text.find("--learning_rate"), std::string::npos);
  try {
    help_text(Dialect::kTrain, "nonsense");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_TRUE(contains(error.what(), "Parallel layout"));
  }
}

TEST(Documents, HelpShowsTheCommandsOwnOptions) {
  bool json = false;
  const std::vector<CommandOption> own{{"json", "print JSON", &json}};
  EXPECT_TRUE(contains(help_text(Dialect::kTrain, std::nullopt, own), "--json"));
}

TEST(Documents, ArgsYamlGivesTheSameArgumentsBack) {
  const std::vector<std::pair<Dialect, Words>> cases{
      {Dialect::kTrain, {}},
      {Dialect::kPretrain, {}},
      {Dialect::kTrain,
       {"--tp=2", "--bf16", "--dataset=a,b", "--learning_rate=1.2345678901234567e-5", "--default_system",
        "a: \"b\"\n- c # d\té 'x'", "--lr_scheduler_kwargs={\"min_lr\": 1e-6, \"s\": \"8x\"}", "--packing=false",
        "--output_dir", "null", "--recompute_modules=mlp,moe", "--no_delay_grad_reduce", "--seed=9007199254740993",
        "--run_name", "", "--template", "true", "--interleave_probs=0.5,0.5", "--enable_thinking=no"}},
      {Dialect::kPretrain,
       {"--rampup-batch-size",
        "16",
        "16",
        "100",
        "--data-path",
        "0.5",
        "a b",
        "--moe-aux-loss-coeff",
        "0.1",
        "0.2",
        "--step-batch-size-schedule",
        "0:16 2.4B:320",
        "--split",
        "99,1,0",
        "--profile-ranks",
        "0",
        "3",
        "--initial-loss-scale",
        "65536.5",
        "--moe-layer-freq",
        "([1]*3+[0]*2)"}}};
  for (const auto& [dialect, words] : cases) {
    const TrainingArguments args = args_of(words, dialect);
    const TempFile file("args.yaml", to_yaml(args));
    const TrainingArguments again = args_of({file.path()}, dialect);
    EXPECT_EQ(again, args);
    EXPECT_EQ(to_yaml(again), to_yaml(args));
  }
}

TEST(Documents, DictionariesFromFilesSurviveArgsYaml) {
  const TempFile kwargs("kwargs.json", R"({"text": "8", "n": null, "list": [1, "2", {"a": true}]})");
  const TrainingArguments args = args_of({"--additional_configs", kwargs.path()});
  const TempFile file("args.yaml", to_yaml(args));
  EXPECT_EQ(args_of({file.path()}), args);
}

}  // namespace
}  // namespace megalith::config
