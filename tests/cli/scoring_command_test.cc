// Reward models and classifiers as a person meets them: `megalith train`, `eval`, `score` and what they refuse.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/hf/safetensors_file.h"
#include "megalith/hf/weight_writer.h"
#include "tests/cli/run_losses.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/json_file.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Words = std::vector<std::string>;

// The golden llama with a small tokenizer that has llama3's special tokens, pairs of answers and texts with labels.
class ScoringCommand : public ::testing::Test {
 protected:
  ScoringCommand() {
    std::ofstream texts(folder_ / "texts.txt");
    json pairs = json::array(), labelled = json::array(), rated = json::array();
    for (int i = 0; i < 16; ++i) {
      const std::string question = "What is " + std::to_string(i) + " plus one?", good = std::to_string(i + 1),
                        bad = i % 2 == 0 ? "No idea, ask somebody else." : "five";
      texts << question << "\n" << bad << "\n";
      pairs.push_back({{"instruction", question}, {"chosen", good}, {"rejected", bad}, {"margin", 0.1 * i}});
      labelled.push_back({{"text", i % 2 == 0 ? question : bad}, {"label", i % 2}});
      rated.push_back({{"instruction", question}, {"output", good}, {"grade", 0.5 * i}});
    }
    texts.close();
    write("pairs.json", pairs);
    write("labelled.json", labelled);
    write("rated.json", rated);
    write("no_label.json", {{{"text", "Hello there"}, {"label", 1}}, {{"text", "Hello you"}}});
    write("no_rejected.json", {{{"instruction", "Q"}, {"chosen", "A"}}});
    write("bad_margin.json", {{{"instruction", "Q"}, {"chosen", "A"}, {"rejected", "B"}, {"margin", "wide"}}});
    const json answers{{"prompt", "instruction"}, {"chosen", "chosen"}, {"rejected", "rejected"}, {"margin", "margin"}};
    const auto ranked = [&](const char* file) {
      return json{{"file_name", file}, {"ranking", true}, {"columns", answers}};
    };
    write("dataset_info.json",
          {{"pairs", ranked("pairs.json")},
           {"no_rejected", ranked("no_rejected.json")},
           {"bad_margin", ranked("bad_margin.json")},
           {"rated",
            {{"file_name", "rated.json"},
             {"columns", {{"prompt", "instruction"}, {"response", "output"}, {"label", "grade"}}}}},
           {"unlabelled", {{"file_name", "rated.json"}}}});
    const auto made =
        run_process({MEGALITH_PROGRAM, "data", "train-tokenizer", path("texts.txt"), "--vocab-size", "300", "--output",
                     path("model"), "--special_tokens",
                     "<|begin_of_text|>,<|end_of_text|>,<|start_header_id|>,<|end_header_id|>,<|eot_id|>,<|eom_id|>"});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    for (const char* name : {"config.json", "model.safetensors"})
      fs::copy_file(golden_dir() / "hf" / "llama" / name, folder_ / "model" / name);
  }

  void write(const std::string& name, const json& content) const {
    std::ofstream(folder_ / name) << content.dump(1) << "\n";
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // Options of every run here; `more` wins.
  ProcessResult train(const std::string& output, const Words& more) const {
    Words words{MEGALITH_PROGRAM,
                "train",
                "--finetuning_type=full",
                "--use_cpu",
                "--template=llama3",
                "--model_name_or_path=" + path("model"),
                "--dataset_dir=" + folder_.path().string(),
                "--output_dir=" + path(output),
                "--per_device_train_batch_size=4",
                "--gradient_accumulation_steps=2",
                "--max_steps=4",
                "--learning_rate=1e-3",
                "--logging_steps=1",
                "--save_strategy=no"};
    words.insert(words.end(), more.begin(), more.end());
    return run_process(words, {{"XDG_CACHE_HOME", path("cache")}});
  }
  ProcessResult evaluate(const std::string& model, const Words& more) const {
    Words words{MEGALITH_PROGRAM,
                "eval",
                "--use_cpu",
                "--template=llama3",
                "--model=" + path(model),
                "--dataset_dir=" + folder_.path().string(),
                "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return run_process(words, {{"XDG_CACHE_HOME", path("cache")}});
  }
  void write_batch(const std::vector<std::vector<int64_t>>& texts) const {
    size_t longest = 0;
    for (const auto& text : texts) longest = std::max(longest, text.size());
    const std::vector<int64_t> shape{std::ssize(texts), static_cast<int64_t>(longest)};
    at::Tensor ids = at::full(shape, 11, at::kLong), mask = at::zeros(shape, at::kLong);
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto row = static_cast<int64_t>(i), length = std::ssize(texts[i]);
      ids[row].narrow(0, 0, length).copy_(at::tensor(texts[i], at::kLong));
      mask[row].narrow(0, 0, length).fill_(1);
    }
    fs::create_directory(folder_ / "batch");
    hf::WeightWriter writer(folder_ / "batch",
                            {{"input_ids", hf::Dtype::kI64, shape}, {"attention_mask", hf::Dtype::kI64, shape}});
    writer.create_files();
    writer.write("input_ids", ids);
    writer.write("attention_mask", mask);
    writer.sync();
  }
  ProcessResult score(const std::string& model, const Words& more) const {
    Words words{MEGALITH_PROGRAM,
                "score",
                "--use_cpu",
                "--model=" + path(model),
                "--input=" + path("batch/model.safetensors"),
                "--output=" + path("scores.safetensors"),
                "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return run_process(words);
  }

  TempFolder folder_;
};

TEST_F(ScoringCommand, RewardsTrainEvaluateAndScore) {
  const auto whole = train("reward", {"--stage=rm", "--dataset=pairs", "--save_strategy=steps", "--save_steps=2"});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const std::vector<double> losses = losses_in(folder_ / "reward");
  ASSERT_EQ(losses.size(), 4U);
  EXPECT_LT(losses.back(), losses.front());
  for (const char* key : {"accuracy", "margin", "mean_reward", "min_reward", "max_reward"})
    EXPECT_TRUE(logged_lines(folder_ / "reward").front().contains(key)) << key;
  EXPECT_EQ(json_file(folder_ / "reward" / "config.json").at("architectures"),
            json::array({"LlamaForSequenceClassification"}));
  // Two stages of two ranks, and the rest of a run that ended in the middle.
  const auto spread = train("spread", {"--stage=rm", "--dataset=pairs", "--nproc=4", "--tp=2", "--pp=2"});
  ASSERT_EQ(spread.exit_code, 0) << spread.err;
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses_in(folder_ / "spread")[i], losses[i], 1e-4);
  fs::remove_all(folder_ / "reward" / "checkpoint-4");
  const auto resumed = train("reward", {"--stage=rm", "--dataset=pairs", "--save_strategy=steps", "--save_steps=2",
                                        "--resume_from_checkpoint=auto"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(losses_in(folder_ / "reward"), losses);

  const auto evaluated = evaluate("reward", {"--stage=rm", "--eval_dataset=pairs"});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  const json metrics = json::parse(evaluated.out);
  EXPECT_LT(metrics.at("eval_loss").get<double>(), losses.front());
  EXPECT_TRUE(metrics.contains("eval_accuracy"));
  EXPECT_FALSE(metrics.contains("eval_perplexity"));

  write_batch({{5, 6, 7, 8}, {9, 10}});
  const auto scored = score("reward", {});
  ASSERT_EQ(scored.exit_code, 0) << scored.err;
  const json logits = json::parse(scored.out).at("logits");
  ASSERT_EQ(logits.size(), 2U);
  const hf::SafetensorsFile file(folder_ / "scores.safetensors");
  EXPECT_EQ(file.tensor("logits").sizes(), (std::vector<int64_t>{2, 1}));
  const auto split = score("reward", {"--nproc=2", "--tp=2"});
  ASSERT_EQ(split.exit_code, 0) << split.err;
  EXPECT_NEAR(json::parse(split.out).at("logits")[1][0].get<double>(), logits[1][0].get<double>(), 1e-5);
  const auto refused = score("reward", {"--logits"});
  EXPECT_EQ(refused.exit_code, 2);
  expect_contains(refused.err, "leave out --logits");
  const auto texts = run_process(
      {MEGALITH_PROGRAM, "generate", "--use_cpu", "--model=" + path("reward"), "--prompt=Hello", "--max_new_tokens=2"});
  EXPECT_EQ(texts.exit_code, 2) << texts.err;
  expect_contains(texts.err, "cannot generate text");
}

TEST_F(ScoringCommand, LabelsTrainAndEvaluate) {
  const auto classes = train("classes", {"--stage=cls", "--num_labels=2", "--dataset=" + path("labelled.json"),
                                         "--neat_packing", "--cutoff_len=24", "--per_device_train_batch_size=1"});
  ASSERT_EQ(classes.exit_code, 0) << classes.err;
  EXPECT_LT(losses_in(folder_ / "classes").back(), losses_in(folder_ / "classes").front());
  const auto evaluated = evaluate("classes", {"--stage=cls", "--eval_dataset=" + path("labelled.json")});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_GE(json::parse(evaluated.out).at("eval_accuracy").get<double>(), 0.5);
  // Conversations with numbers, by an adapter.
  const auto numbers = train("numbers", {"--stage=cls", "--num_labels=1", "--dataset=rated", "--finetuning_type=lora"});
  ASSERT_EQ(numbers.exit_code, 0) << numbers.err;
  EXPECT_EQ(json_file(folder_ / "numbers" / "adapter_config.json").at("task_type"), "SEQ_CLS");
}

// Reward models as LLaMA-Factory writes them (tests/data/value_head/make.py).
TEST_F(ScoringCommand, ValueHeadsAreRead) {
  const json golden = json_file("tests/data/value_head/golden.json");
  const fs::path adapter = fs::absolute("tests/data/value_head/adapter");
  fs::copy(folder_ / "model", folder_ / "full");
  fs::copy_file("tests/data/value_head/full/value_head.safetensors", folder_ / "full" / "value_head.safetensors");
  write_batch(golden.at("texts").get<std::vector<std::vector<int64_t>>>());
  const auto expect_scores = [&](const ProcessResult& scored, const json& expected) {
    ASSERT_EQ(scored.exit_code, 0) << scored.err;
    const json logits = json::parse(scored.out).at("logits");
    ASSERT_EQ(logits.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(logits[i][0].get<double>(), expected[i].get<double>(), 1e-4) << i;
  };
  expect_scores(score("full", {"--stage=rm"}), golden.at("full").at("scores"));
  const std::string with_adapter = "--adapter_name_or_path=" + adapter.string();
  expect_scores(score("model", {"--stage=rm", with_adapter}), golden.at("adapter").at("scores"));
  const auto merged = run_process({MEGALITH_PROGRAM, "convert", "--checkpoint_path", path("full"), "--adapter_path",
                                   adapter.string(), "--output_path", path("merged")});
  ASSERT_EQ(merged.exit_code, 0) << merged.err;
  expect_scores(score("merged", {"--stage=rm"}), golden.at("adapter").at("scores"));
  const auto tokens = score("full", {});
  ASSERT_EQ(tokens.exit_code, 0) << tokens.err;
  EXPECT_TRUE(json::parse(tokens.out).contains("loss"));
  expect_contains(tokens.err, "holds a value head");
  const auto untrained = score("model", {"--stage=rm"});
  EXPECT_EQ(untrained.exit_code, 2);
  expect_contains(untrained.err, "new and untrained");

  for (const Words& more : {Words{"--model_name_or_path=" + path("full")},
                            Words{"--finetuning_type=lora", "--lora_rank=4", with_adapter}}) {
    SCOPED_TRACE(more.back());
    Words words{"--stage=rm", "--dataset=pairs", "--save_strategy=steps", "--save_steps=2"};
    words.insert(words.end(), more.begin(), more.end());
    const auto whole = train("further", words);
    ASSERT_EQ(whole.exit_code, 0) << whole.err;
    const std::vector<double> losses = losses_in(folder_ / "further");
    fs::remove_all(folder_ / "further" / "checkpoint-4");
    words.emplace_back("--resume_from_checkpoint=auto");
    const auto resumed = train("further", words);
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_EQ(losses_in(folder_ / "further"), losses);
    fs::rename(folder_ / "further", folder_ / (more.size() > 1 ? "adapter" : "trained"));
  }
  const double bias = golden.at("full").at("bias").get<double>();
  EXPECT_EQ(json_file(folder_ / "trained" / "config.json").at("score_bias").get<double>(), bias);
  const auto evaluated = evaluate("trained", {"--stage=rm", "--eval_dataset=pairs"});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  const auto with_further =
      evaluate("model", {"--stage=rm", "--eval_dataset=pairs", "--adapter_name_or_path=" + path("adapter")});
  ASSERT_EQ(with_further.exit_code, 0) << with_further.err;
  const auto as_given = evaluate("full", {"--stage=rm", "--eval_dataset=pairs"});
  ASSERT_EQ(as_given.exit_code, 0) << as_given.err;
}

TEST_F(ScoringCommand, BadInputIsRefusedBeforeAnyWork) {
  const auto refused = [&](const Words& more, const std::string& part) {
    const auto result = train("bad", more);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    expect_contains(result.err, part);
    EXPECT_FALSE(fs::exists(folder_ / "bad" / "metrics.jsonl"));
  };
  refused({"--stage=rm", "--dataset=" + path("labelled.json")}, "stage rm needs preference pairs");
  refused({"--stage=rm", "--dataset=no_rejected"}, "chosen or rejected is missing");
  refused({"--stage=rm", "--dataset=bad_margin"}, "a margin is a number");
  refused({"--stage=cls", "--num_labels=2", "--dataset=unlabelled"}, "stage cls needs a label for each record");
  refused({"--stage=cls", "--num_labels=2", "--dataset=" + path("no_label.json")}, "no_label.json");
  refused({"--stage=cls", "--num_labels=2", "--dataset=rated"}, "labels are whole numbers from 0 to 1");
  refused({"--stage=cls", "--dataset=" + path("labelled.json")}, "num_labels is missing");
  refused({"--stage=ppo", "--dataset=pairs"}, "PPO is not part of Megalith");
  const auto untrained = evaluate("model", {"--stage=rm", "--eval_dataset=pairs"});
  EXPECT_EQ(untrained.exit_code, 2);
  expect_contains(untrained.err, "new and untrained");
}

}  // namespace
}  // namespace megalith::testing
