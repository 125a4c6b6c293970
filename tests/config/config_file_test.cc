#include <fmt/format.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "tests/config/parse_support.h"

namespace megalith::config {
namespace {

TEST(ConfigFile, YamlValuesTakeTheDeclaredType) {
  const TempFile file("run.yaml",
                      "model_name_or_path: /models/a\n"
                      "tp: 2\n"
                      "learning_rate: 1e-5\n"
                      "bf16: true\n"
                      "packing: null\n"
                      "data_path: null\n"
                      "additional_configs: null\n"
                      "seed: 7  # comment\n"
                      "dataset: [a, b]\n"
                      "eval_dataset: c, d\n"
                      "rampup_batch_size: [16, 8, 1000]\n"
                      "default_system: \"true\"\n"
                      "lr_scheduler_kwargs:\n  min_lr: 0.1\n  name: \"8\"\n");
  const TrainingArguments args = args_of({file.path()});
  EXPECT_EQ(args.source.model_name_or_path, "/models/a");
  EXPECT_EQ(args.parallel.tp, 2);
  EXPECT_EQ(args.optimizer.learning_rate, 1e-5);
  EXPECT_TRUE(args.precision.bf16);
  EXPECT_EQ(args.data.packing, std::nullopt);
  EXPECT_EQ(args.seeds.seed, 7);
  EXPECT_EQ(args.indexed.data_path, Words{});
  EXPECT_TRUE(args.source.additional_configs.empty());
  EXPECT_EQ(args.data.dataset, (Words{"a", "b"}));
  EXPECT_EQ(args.data.eval_dataset, (Words{"c", "d"}));
  EXPECT_EQ(args.batch.rampup_batch_size, (std::vector<int64_t>{16, 8, 1000}));
  EXPECT_EQ(args.data.default_system, "true");
  EXPECT_EQ(args.schedule.lr_scheduler_kwargs.text, R"({"min_lr":0.1,"name":"8"})");
}

TEST(ConfigFile, WordsAfterTheFileWin) {
  const TempFile file("run.yml", "seed: 7\ntensor_model_parallel_size: 2\nbf16: true\n");
  const ParseResult result = parse({file.path(), "seed=8", "--tp", "4", "--bf16=no"});
  EXPECT_EQ(result.args.seeds.seed, 8);
  EXPECT_EQ(result.args.parallel.tp, 4);
  EXPECT_FALSE(result.args.precision.bf16);
  EXPECT_EQ(result.report.uses.size(), 3u);
}

TEST(ConfigFile, AdditionalConfigsAreTheWeakest) {
  const TempFile file("run.yaml",
                      "seed: 7\nadditional_configs: {seed: 1, tensor_model_parallel_size: 2, bf16: true}\n");
  const ParseResult result = parse({file.path(), "--bf16=no"});
  EXPECT_EQ(result.args.seeds.seed, 7);
  EXPECT_EQ(result.args.parallel.tp, 2);
  EXPECT_FALSE(result.args.precision.bf16);
  const ParseResult words = parse({R"(--additional_configs={"tp": 2, "colour": "red"})"});
  EXPECT_EQ(words.args.parallel.tp, 2);
  ASSERT_FALSE(words.notes.empty());
  EXPECT_NE(words.notes.back().find("colour is ignored"), std::string::npos) << words.notes.back();
  EXPECT_THROW(parse({R"(--additional_configs={"tp": "two"})"}), ConfigError);
}

TEST(ConfigFile, JsonReadsAlike) {
  const TempFile file("run.json",
                      "{\n\t\"seed\": 7,\n\t\"dataset\": \"a,b\",\n\t\"packing\": null,\n\t\"learning_rate\": 2e-5\n}");
  const TrainingArguments args = args_of({file.path()});
  EXPECT_EQ(args.seeds.seed, 7);
  EXPECT_EQ(args.data.dataset, (Words{"a", "b"}));
  EXPECT_EQ(args.optimizer.learning_rate, 2e-5);
}

TEST(ConfigFile, ErrorsNameFileLineAndKey) {
  const TempFile file("bad.yaml",
                      "seed: 7\n"
                      "max_steps: 1e3\n"
                      "lerning_rate: 1\n"
                      "lora_rank: null\n"
                      "tensor-model-parallel-size: 2\n"
                      "seed: 8\n"
                      "tp: [1, 2]\n"
                      "bf16: {a: 1}\n");
  const std::string message = error_of({file.path()});
  EXPECT_TRUE(contains(message, "bad.yaml:2: max_steps is \"1e3\"; expected a whole number"));
  EXPECT_TRUE(contains(message, "bad.yaml:3: unknown option lerning_rate; did you mean learning_rate"));
  EXPECT_TRUE(contains(message, "bad.yaml:4: lora_rank is null"));
  EXPECT_TRUE(contains(message, "bad.yaml:5: unknown option tensor-model-parallel-size"));
  EXPECT_TRUE(contains(message, "bad.yaml:6: seed is given twice, first in line 1"));
  EXPECT_TRUE(contains(message, "bad.yaml:7: tp"));
  EXPECT_TRUE(contains(message, "bad.yaml:8: bf16"));
}

TEST(ConfigFile, JsonErrorsNameFileLineAndKey) {
  const TempFile typed("bad.json", "{\n  \"seed\": 7,\n  \"max_steps\": 1.0,\n  \"seed\": 8\n}");
  EXPECT_TRUE(contains(error_of({typed.path()}), "bad.json:3: max_steps is \"1.0\""));
  EXPECT_TRUE(contains(error_of({typed.path()}), "seed is given twice"));
  const TempFile broken("broken.json", "{\n  \"seed\": 7,\n");
  EXPECT_TRUE(contains(error_of({broken.path()}), "broken.json:3: not valid JSON"));
}

TEST(ConfigFile, BrokenFilesAreNamed) {
  EXPECT_TRUE(contains(error_of({"/nowhere/run.yaml"}), "/nowhere/run.yaml: the file cannot be read"));
  const TempFile broken("broken.yaml", "seed: 7\nname: [1, 2\n");
  EXPECT_TRUE(contains(error_of({broken.path()}), "broken.yaml:"));
  const TempFile list("list.yaml", "- seed\n");
  EXPECT_TRUE(contains(error_of({list.path()}), "one option per line"));
  const TempFile empty("empty.yaml", "\n");
  EXPECT_EQ(args_of({empty.path()}), args_of({}));
}

// Ten levels of ten aliases each: ten billion values.
TEST(ConfigFile, AliasesCannotMultiplyWithoutEnd) {
  std::string text = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (int i = 1; i < 10; ++i) {
    text += fmt::format("a{0}: &a{0} [", i);
    for (int j = 0; j < 10; ++j) text += fmt::format("{}*a{}", j == 0 ? "" : ", ", i - 1);
    text += "]\n";
  }
  const TempFile file("bomb.yaml", text);
  EXPECT_TRUE(contains(error_of({file.path()}), "stands for more than 100000 values"));
}

TEST(ConfigFile, OnlyTheFirstWordIsAFile) {
  const TempFile file("run.yaml", "seed: 7\n");
  EXPECT_TRUE(contains(error_of({"--tp=2", file.path()}), "left over"));
}

}  // namespace
}  // namespace megalith::config
