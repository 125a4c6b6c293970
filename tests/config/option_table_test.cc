// Properties that all options of the table share: unique names and fields, bindings that read what they write, and a
// pinned list of names.
#include "megalith/config/option_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/config/value.h"
#include "tests/config/parse_support.h"

namespace megalith::config {
namespace {

constexpr const char* kPinnedNames = "tests/config/option_names.txt";

// An option is a promise to users: none appears or disappears without this list, and so a reviewer, seeing it.
TEST(OptionTable, NamesArePinned) {
  std::vector<std::string> names = OptionTable::instance().names();
  std::ranges::sort(names);
  if (env_flag("MEGALITH_UPDATE_DOCS")) {
    std::ofstream file(kPinnedNames);
    for (const std::string& name : names) file << name << "\n";
  }
  std::ifstream file(kPinnedNames);
  ASSERT_TRUE(file.good()) << kPinnedNames << " cannot be read; tests run in the source folder";
  std::vector<std::string> pinned;
  for (std::string line; std::getline(file, line);) pinned.push_back(line);
  std::vector<std::string> added, removed;
  std::ranges::set_difference(names, pinned, std::back_inserter(added));
  std::ranges::set_difference(pinned, names, std::back_inserter(removed));
  for (const std::string& name : added)
    ADD_FAILURE() << name << " is new: run with MEGALITH_UPDATE_DOCS=1 and commit " << kPinnedNames;
  for (const std::string& name : removed) ADD_FAILURE() << name << " is gone: users still write it";
}

TEST(OptionTable, EveryBindingWritesWhatItReads) {
  for (const Dialect dialect : {Dialect::kTrain, Dialect::kPretrain}) {
    const TrainingArguments args = default_arguments(dialect);
    for (const Option& option : OptionTable::instance().options()) {
      if (!option.read) continue;
      EXPECT_EQ(option.read(args), option.default_value(dialect)) << option.name;
    }
  }
}

TEST(OptionTable, NoTwoOptionsShareAField) {
  // Writing another value through one option must not show through a second one.
  const auto& options = OptionTable::instance().options();
  const auto other_value = [](const Option& option) -> std::optional<Value> {
    const Value& current = option.train_default;
    if (!option.choices.empty()) {
      for (const std::string& choice : option.choices) {
        const Value value = option.takes_list() || option.type == ValueType::kCommaList
                                ? Value(std::vector<std::string>{choice})
                                : Value(choice);
        if (value != current) return value;
      }
    }
    switch (option.type) {
      case ValueType::kBool:
        return Value(!(std::holds_alternative<bool>(current) && std::get<bool>(current)));
      case ValueType::kInt:
        return Value(int64_t{77});
      case ValueType::kFloat:
        return Value(0.77);
      case ValueType::kText:
        return Value(std::string("another"));
      case ValueType::kIntList:
        return Value(std::vector<int64_t>{77});
      case ValueType::kFloatList:
        return Value(std::vector<double>{0.77});
      case ValueType::kDict:
        return Value(JsonObject{R"({"a":1})"});
      default:
        return Value(std::vector<std::string>{"another"});
    }
  };
  for (const Option& option : options) {
    if (!option.write) continue;
    TrainingArguments args = default_arguments(Dialect::kTrain);
    const auto value = other_value(option);
    ASSERT_TRUE(value) << option.name;
    option.write(args, *value);
    EXPECT_EQ(option.read(args), *value) << option.name;
    for (const Option& second : options) {
      if (!second.read || &second == &option) continue;
      EXPECT_EQ(second.read(args), second.train_default) << option.name << " changes " << second.name;
    }
  }
}

TEST(OptionTable, OptionsWithAConsumerAreBound) {
  for (const Option& option : OptionTable::instance().options()) {
    const bool needs_field = option.status == OptionStatus::kImplemented || option.status == OptionStatus::kPlanned;
    EXPECT_TRUE(!needs_field || option.write) << option.name << " has no member in TrainingArguments";
    EXPECT_TRUE(option.status == OptionStatus::kNoEffect || option.status == OptionStatus::kRefused ||
                !option.help.empty())
        << option.name << " has no help text";
  }
}

// Otherwise every `train` with a model folder would be refused.
TEST(OptionTable, WhatDescribesANewModelIsUnsetByDefault) {
  int count = 0;
  for (const Option& option : OptionTable::instance().options()) {
    if (!option.describes_new_model) continue;
    EXPECT_TRUE(option.train_default == Value() || option.train_default == Value(false)) << option.name;
    ++count;
  }
  EXPECT_GT(count, 30);
}

TEST(OptionTable, EveryMegatronAndHuggingFaceSpellingIsFound) {
  for (const char* name : {"tp",
                           "pp",
                           "vpp",
                           "cp",
                           "ep",
                           "etp",
                           "lr",
                           "clip_grad",
                           "micro_batch_size",
                           "evaluation_strategy",
                           "no_rope_fusion",
                           "disable_bias_linear",
                           "moe_aux_loss_coef",
                           "tensorboard_dir",
                           "beta",
                           "label_smoothing",
                           "fp8_format",
                           "fp8_param_gather",
                           "no_mmap_bin_files",
                           "no_load_optim"})
    EXPECT_TRUE(OptionTable::instance().find(name)) << name;
  EXPECT_FALSE(OptionTable::instance().find("no_such_option"));
}

TEST(OptionTable, OldNamesOfDeterminismAndGraphsAct) {
  const Words given{"--deterministic-mode", "--enable-cuda-graph"};
  const TrainingArguments args = parse(given, Dialect::kPretrain).args;
  EXPECT_TRUE(args.seeds.full_determinism);
  EXPECT_EQ(args.fusion.cuda_graph_impl, "local");
}

TEST(OptionTable, NamesAreUnique) {
  Option first;
  first.name = "a";
  first.topic = "t";
  first.reason = "r";
  Option second = first;
  second.name = "b";
  second.aliases = {"a"};
  EXPECT_THROW(OptionTable({first, second}), InternalError);
}

}  // namespace
}  // namespace megalith::config
