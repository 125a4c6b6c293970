// resolve: every problem at once, and a plan in which everything is decided.
#include "megalith/run/resolve/resolve.h"

#include <gtest/gtest.h>

#include <fstream>

#include "megalith/base/error.h"
#include "megalith/config/parser.h"
#include "megalith/optim/rules/sgd.h"
#include "megalith/run/resolve/run_plan.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace megalith::run {
namespace {

using testing::expect_contains;
using testing::golden_dir;
using testing::TempFolder;
using Words = std::vector<std::string>;

RunRequest request(const Words& words, int world_size = 1, config::Dialect dialect = config::Dialect::kTrain) {
  const auto parsed = config::parse_arguments(dialect, words);
  return {.work = dialect == config::Dialect::kPretrain ? Work::kPretrain : Work::kTrain,
          .options = parsed.args,
          .report = parsed.report,
          .world = {.size = world_size}};
}

// A run that could start, in a folder of its own.
class Resolve : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(folder_ / "data.jsonl") << R"({"input_ids": [1, 2, 3], "labels": [1, 2, 3]})"
                                          << "\n";
  }

  Words words(const Words& more = {}, const std::string& model = "llama") const {
    Words all{"--model_name_or_path=" + (golden_dir() / "hf" / model).string(),
              "--dataset=" + (folder_ / "data.jsonl").string(),
              "--output_dir=" + (folder_ / "out").string(),
              "--finetuning_type=full",
              "--max_steps=4",
              "--use_cpu"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  template <typename E>
  static std::string refusal(const RunRequest& wanted) {
    try {
      resolve(wanted);
    } catch (const E& error) {
      return error.what();
    }
    return "";
  }

  TempFolder folder_;
};

TEST_F(Resolve, DecidesEverythingAndWritesNothing) {
  const RunPlan plan = resolve(request(words({"--tp=2", "--bf16"}), 4));
  EXPECT_TRUE(plan.settings.trains);
  EXPECT_EQ(plan.settings.runtime.grid.dp(), 2);
  EXPECT_EQ(plan.settings.trainer.length.max_steps, 4);
  EXPECT_EQ(plan.settings.model.options.dtype, at::kBFloat16);
  EXPECT_EQ(plan.settings.output.folder, folder_ / "out");
  EXPECT_EQ(plan.model.folder, golden_dir() / "hf" / "llama");
  EXPECT_EQ(plan.model.config.family, "llama");
  EXPECT_FALSE(plan.model.adapter);
  EXPECT_FALSE(plan.preference);
  EXPECT_EQ(*plan.options.parallel.pp, 1);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

// A program with its own samples names no dataset, and hears of options that only datasets would read.
TEST_F(Resolve, PlansTheDataOfAProgram) {
  const std::string model = "--model_name_or_path=" + (golden_dir() / "hf" / "llama").string();
  const Words own{model, "--finetuning_type=full", "--max_steps=4", "--use_cpu", "--tp=2", "--sequence_parallel"};
  RunRequest wanted = request(own, 2);
  wanted.own_datasets = true;
  const RunPlan plan = resolve(wanted);
  EXPECT_EQ(plan.data.collator.tp, 2);
  EXPECT_EQ(plan.data.collator.padding, data::Padding::kLongest);
  EXPECT_TRUE(plan.data.order.shuffle);
  EXPECT_TRUE(plan.data.trains);

  Words packed = own;
  packed.push_back("--sequence_packing");
  wanted = request(packed, 2);
  wanted.own_datasets = true;
  EXPECT_EQ(resolve(wanted).data.collator.padding, data::Padding::kNone);

  wanted = request(words({"--streaming"}));
  wanted.own_datasets = true;
  expect_contains(refusal<ConfigError>(wanted), "the program brings its own data");
}

// An adapter that is trained further keeps the rank, the targets and the biases of its files, whatever the options say.
TEST_F(Resolve, PlansTheAdapterOfTheFiles) {
  const RunPlan plan = resolve(request(words(
      {"--finetuning_type=lora", "--lora_rank=16", "--adapter_name_or_path=tests/data/peft/qwen2_biases"}, "qwen2")));
  const auto& adapter = plan.settings.shape.options.adapter;
  ASSERT_TRUE(adapter);
  EXPECT_EQ(adapter->rank, 2);
  EXPECT_EQ(adapter->biases, peft::TrainedBiases::kTargets);
}

TEST_F(Resolve, TellsEveryProblemAtOnce) {
  std::filesystem::create_directory(folder_ / "full");
  std::ofstream(folder_ / "full" / "notes.txt") << "mine";
  const std::string text = refusal<ConfigError>(
      request({"--model_name_or_path=" + (folder_ / "no-model").string(), "--dataset=no-data.jsonl", "--stage=ppo",
               "--output_dir=" + (folder_ / "full").string(), "--fp16", "--bf16", "--use_cpu", "--max_steps=4",
               "--resume_from_checkpoint=" + (folder_ / "no-checkpoint").string(), "--overwrite_output_dir=false"}));
  for (const char* part : {"no-model", "no-data.jsonl", "stage", "bf16", "no-checkpoint"}) expect_contains(text, part);
  const std::string full = refusal<ConfigError>(request(
      {"--dataset=no-data.jsonl", "--output_dir=" + (folder_ / "full").string(), "--use_cpu", "--max_steps=4"}));
  for (const char* part : {"model_name_or_path", "no-data.jsonl", "is not empty"}) expect_contains(full, part);
}

TEST_F(Resolve, EnergyNeedsAGpu) {
  expect_contains(refusal<ConfigError>(request(words({"--log_energy", "--use_cpu"}))), "this run is on the CPU");
  EXPECT_NO_THROW(resolve(request(words({"--log_energy=false", "--use_cpu"}))));
}

TEST_F(Resolve, FilesAloneAreADataError) {
  std::ofstream(folder_ / "config.json") << "{";
  Words mine = words();
  mine[0] = "--model_name_or_path=" + folder_.path().string();
  mine.emplace_back("--train_from_scratch");
  expect_contains(refusal<DataError>(request(mine)), "config.json");
}

TEST_F(Resolve, TheModelSaysWhetherItHasExperts) {
  const RunPlan plan = resolve(request(words({"--tp=2"}, "mixtral"), 2));
  EXPECT_TRUE(plan.settings.model.options.sequence_parallel);
  EXPECT_TRUE(plan.options.parallel.sequence_parallel);
  ASSERT_EQ(plan.warnings.size(), 2);
  expect_contains(plan.warnings[0], "sequence_parallel is switched on");
  expect_contains(refusal<ConfigError>(request(words({"--ep=64", "--etp=1"}, "mixtral"), 64)), "experts");
  expect_contains(refusal<ConfigError>(request(words({"--ep=2"}), 2)), "has no experts to distribute");
}

TEST_F(Resolve, PlansWithTheRuleOfTheProgram) {
  RunRequest mine = request(words());
  const double adamw = resolve(mine).settings.shape.optimizer_state_bytes;
  mine.own.update_rule = std::make_shared<optim::Sgd>();
  const RunPlan plan = resolve(mine);
  EXPECT_LT(plan.settings.shape.optimizer_state_bytes, adamw);
  EXPECT_EQ(plan.settings.trainer.update.optimizer.rule, mine.own.update_rule);
}

TEST_F(Resolve, AnEvaluationTrainsOnNothingAndWritesNothing) {
  RunRequest mine = request(words({"--val_size=0.5", "--streaming"}));
  mine.work = Work::kEvaluate;
  const RunPlan plan = resolve(mine);
  EXPECT_FALSE(plan.settings.trains);
  EXPECT_FALSE(plan.data.trains);
  EXPECT_TRUE(plan.settings.output.folder.empty());
  EXPECT_EQ(plan.data.request.data.eval_dataset.size(), 1);
  mine.options.data.dataset.clear();
  expect_contains(refusal<ConfigError>(mine), "nothing to evaluate on");
}

TEST_F(Resolve, APretrainingRunTellsOfModelDataAndCheckpointTogether) {
  const std::string text = refusal<ConfigError>(
      request({"--num-layers=2", "--hidden-size=32", "--seq-length=16", "--micro-batch-size=1", "--train-iters=1",
               "--lr=0.1", "--max-position-embeddings=16", "--num-attention-heads=4", "--data-path", "no/prefix",
               "--load=no/run", "--ckpt-step=3", "--use-cpu"},
              1, config::Dialect::kPretrain));
  for (const char* part : {"there is no tokenizer", "no/prefix.idx", "no/run"}) expect_contains(text, part);
  const std::string bare =
      refusal<ConfigError>(request({"--num-layers=2", "--use-cpu"}, 1, config::Dialect::kPretrain));
  EXPECT_EQ(bare.find("mock_data"), bare.rfind("mock_data")) << bare;  // each problem once
}

}  // namespace
}  // namespace megalith::run
