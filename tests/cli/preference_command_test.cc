// `megalith train --stage dpo` as a person meets it: conversations, a template, processes.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/run_losses.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Words = std::vector<std::string>;

constexpr int kPairs = 16;

// The golden llama with a small tokenizer that has llama3's special tokens, and pairs of answers in both forms that
// dataset_info.json knows.
class PreferenceCommand : public ::testing::Test {
 protected:
  PreferenceCommand() {
    std::ofstream texts(folder_ / "texts.txt");
    json alpaca = json::array(), sharegpt = json::array(), rated = json::array();
    for (int i = 0; i < kPairs; ++i) {
      const std::string question = "What is " + std::to_string(i) + " plus one?", good = std::to_string(i + 1),
                        bad = i % 2 == 0 ? "No idea, ask somebody else." : "five";
      texts << question << "\n" << bad << "\n";
      alpaca.push_back({{"instruction", question}, {"chosen", good}, {"rejected", bad}});
      rated.push_back({{"instruction", question}, {"output", i % 3 == 0 ? bad : good}, {"kto_tag", i % 3 != 0}});
      sharegpt.push_back({{"conversations", {{{"from", "human"}, {"value", question}}}},
                          {"chosen", {{"from", "gpt"}, {"value", good}}},
                          {"rejected", {{"from", "gpt"}, {"value", bad}}}});
    }
    texts.close();
    write("alpaca.json", alpaca);
    write("sharegpt.json", sharegpt);
    write("rated.json", rated);
    write("empty.json", {{{"instruction", "Q"}, {"chosen", "A"}, {"rejected", ""}}});
    const auto entry = [](const char* file, const json& columns) {
      return json{{"file_name", file}, {"ranking", true}, {"columns", columns}};
    };
    const json answers{{"prompt", "instruction"}, {"chosen", "chosen"}, {"rejected", "rejected"}};
    json turns =
        entry("sharegpt.json", {{"messages", "conversations"}, {"chosen", "chosen"}, {"rejected", "rejected"}});
    turns["formatting"] = "sharegpt";
    write("dataset_info.json",
          {{"alpaca_pairs", entry("alpaca.json", answers)},
           {"sharegpt_pairs", turns},
           {"empty_answer", entry("empty.json", answers)},
           {"rated",
            {{"file_name", "rated.json"},
             {"columns", {{"prompt", "instruction"}, {"response", "output"}, {"kto_tag", "kto_tag"}}}}},
           {"single", {{"file_name", "alpaca.json"}}}});
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
  static std::string reference() { return (golden_dir() / "hf" / "preference" / "ref").string(); }

  // Options of every run here; `more` wins.
  ProcessResult train(const std::string& output, const Words& more) const {
    Words words{MEGALITH_PROGRAM,
                "train",
                "--stage=dpo",
                "--finetuning_type=full",
                "--use_cpu",
                "--template=llama3",
                "--model_name_or_path=" + path("model"),
                "--dataset_dir=" + folder_.path().string(),
                "--dataset=alpaca_pairs",
                "--output_dir=" + path(output),
                "--per_device_train_batch_size=2",
                "--gradient_accumulation_steps=2",
                "--max_steps=4",
                "--learning_rate=1e-4",
                "--logging_steps=1",
                "--save_strategy=no"};
    words.insert(words.end(), more.begin(), more.end());
    // Every task shows its progress, however short it is.
    return run_process(words, {{"XDG_CACHE_HOME", path("cache")}, {"MEGALITH_PROGRESS_MS", "0"}});
  }

  std::vector<json> lines(const std::string& output) const { return logged_lines(folder_ / output); }
  std::vector<double> numbers(const std::string& output, const std::string& key) const {
    return logged_numbers(folder_ / output, key);
  }

  TempFolder folder_;
};

// ROLL's run_dpo_train.sh, paths aside.
class PublishedDpoListRun : public PreferenceCommand {};
TEST_F(PublishedDpoListRun, RollDpo) {
  Words words{MEGALITH_PROGRAM, "train", "--nproc", "2", "--use_cpu"};
  std::ifstream file(golden_dir() / "options" / "roll_dpo.txt");
  for (std::string line; std::getline(file, line);) {
    const size_t from = line.find('<');
    if (from != std::string::npos) {
      const std::string what = line.substr(from);
      line = line.substr(0, from) + (what == "<dir>"     ? folder_.path().string()
                                     : what == "<name>"  ? "sharegpt_pairs"
                                     : what == "<model>" ? path("model")
                                                         : path("roll"));
    }
    std::istringstream parts(line);
    for (std::string part; parts >> part;) words.push_back(part);
  }
  ASSERT_GT(words.size(), 20U);
  const auto result = run_process(words, {{"XDG_CACHE_HOME", path("cache")}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto all = lines("roll");
  ASSERT_EQ(all.size(), 4U);                                        // 16 pairs, 8 per step, 2 epochs
  EXPECT_NEAR(all[0].at("loss").get<double>(), std::log(2), 1e-6);  // the policy is the reference
  for (const char* key : {"rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen",
                          "logps/rejected", "sft_loss", "grad_norm", "learning_rate"})
    EXPECT_TRUE(all[0].contains(key)) << key;
  EXPECT_TRUE(fs::exists(folder_ / "roll" / "model.safetensors"));
  EXPECT_TRUE(fs::exists(folder_ / "roll" / "tokenizer.json"));
}

TEST_F(PreferenceCommand, LearnsWithEveryLossAndBothForms) {
  for (const char* loss : {"sigmoid", "hinge", "ipo", "orpo", "simpo", "apo_zero"}) {
    const auto result = train(loss, {"--pref_loss=" + std::string(loss), "--dataset=sharegpt_pairs",
                                     "--learning_rate=1e-3", "--max_steps=3", "--disable_shuffling"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_LT(numbers(loss, "loss").back(), numbers(loss, "loss").front()) << loss;
  }
  EXPECT_TRUE(lines("orpo").front().contains("odds_ratio_loss"));
  // The same pairs in the other form are the same tokens.
  ASSERT_EQ(train("alpaca", {"--learning_rate=1e-3", "--max_steps=3", "--disable_shuffling"}).exit_code, 0);
  EXPECT_EQ(numbers("alpaca", "loss"), numbers("sigmoid", "loss"));
}

TEST_F(PreferenceCommand, KeepsWhatTheReferenceSaidAndContinues) {
  const Words saving{"--save_strategy=steps", "--save_steps=2", "--ref_model=" + reference(), "--optimizer=sgd",
                     "--precompute_ref_log_probs"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), saving.begin(), saving.end());
    return more;
  };
  const auto whole = train("whole", with({}));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  expect_contains(whole.err, "scoring with the reference model: ");
  expect_contains(whole.err, "has scored 16 pairs");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "cache/megalith/reference"), {}), 1);
  const auto live = train("live", {"--ref_model=" + reference(), "--optimizer=sgd"});
  ASSERT_EQ(live.exit_code, 0) << live.err;
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(numbers("live", "loss")[i], numbers("whole", "loss")[i], 1e-5);
  // Ended in the middle, and continued.
  ASSERT_EQ(train("again", with({})).exit_code, 0);
  fs::remove_all(folder_ / "again" / "checkpoint-4");
  const auto resumed = train("again", with({"--resume_from_checkpoint=auto"}));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_contains(resumed.err, "reference scores of 16 pairs are taken from");
  EXPECT_EQ(numbers("again", "rewards/margins"), numbers("whole", "rewards/margins"));
  // Two pipeline stages of two tensor-parallel ranks.
  const auto spread = train("spread", with({"--nproc=4", "--tp=2", "--pp=2"}));
  ASSERT_EQ(spread.exit_code, 0) << spread.err;
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(numbers("spread", "loss")[i], numbers("whole", "loss")[i], 1e-5);
  // The trained model prefers the chosen answers more than the reference does.
  const auto evaluated =
      run_process({MEGALITH_PROGRAM, "eval", "--use_cpu", "--stage=dpo", "--template=llama3",
                   "--model=" + path("whole"), "--ref_model=" + path("model"),
                   "--dataset_dir=" + folder_.path().string(), "--eval_dataset=alpaca_pairs", "--json"},
                  {{"XDG_CACHE_HOME", path("cache")}});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  const json metrics = json::parse(evaluated.out);
  EXPECT_GT(metrics.at("eval_rewards/margins"), 0);
  EXPECT_FALSE(metrics.contains("eval_perplexity"));
}

TEST_F(PreferenceCommand, VerdictsTrainContinueAndEvaluate) {
  const auto kto = [](Words more) {
    const Words common{"--stage=kto", "--dataset=rated", "--kto_chosen_weight=1.5", "--learning_rate=1e-3",
                       "--optimizer=sgd"};
    more.insert(more.begin(), common.begin(), common.end());
    return more;
  };
  const auto whole = train("whole", kto({"--save_strategy=steps", "--save_steps=2"}));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const auto all = lines("whole");
  ASSERT_EQ(all.size(), 4U);
  // The policy is the reference: σ(0) of each answer, times its weight.
  EXPECT_GE(all[0].at("loss").get<double>(), 0.5 - 1e-6);
  EXPECT_LE(all[0].at("loss").get<double>(), 0.75 + 1e-6);
  EXPECT_NEAR(all[0].at("kl").get<double>(), 0, 1e-6);
  for (const char* key : {"rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "logps/rejected"})
    EXPECT_TRUE(all[0].contains(key)) << key;
  EXPECT_NE(all.back().at("rewards/chosen").get<double>(), 0) << "the policy has not moved";
  ASSERT_EQ(train("again", kto({"--save_strategy=steps", "--save_steps=2"})).exit_code, 0);
  fs::remove_all(folder_ / "again" / "checkpoint-4");
  const auto resumed =
      train("again", kto({"--save_strategy=steps", "--save_steps=2", "--resume_from_checkpoint=auto"}));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(numbers("again", "loss"), numbers("whole", "loss"));
  // Two pipeline stages of two tensor-parallel ranks, with scores computed beforehand; and an adapter.
  const auto spread = train("spread", kto({"--nproc=4", "--tp=2", "--pp=2", "--precompute_ref_log_probs"}));
  ASSERT_EQ(spread.exit_code, 0) << spread.err;
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(numbers("spread", "loss")[i], numbers("whole", "loss")[i], 1e-5);
  const auto lora = train("lora", kto({"--finetuning_type=lora"}));
  ASSERT_EQ(lora.exit_code, 0) << lora.err;
  EXPECT_NEAR(numbers("lora", "loss")[0], numbers("whole", "loss")[0], 1e-6);
  const auto evaluated = run_process(
      {MEGALITH_PROGRAM, "eval", "--use_cpu", "--stage=kto", "--template=llama3", "--model=" + path("whole"),
       "--ref_model=" + path("model"), "--dataset_dir=" + folder_.path().string(), "--eval_dataset=rated", "--json"},
      {{"XDG_CACHE_HOME", path("cache")}});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  const json metrics = json::parse(evaluated.out);
  EXPECT_TRUE(std::isfinite(metrics.at("eval_rewards/margins").get<double>()));
  EXPECT_GE(metrics.at("eval_kl").get<double>(), 0);
  EXPECT_FALSE(metrics.contains("eval_perplexity"));
}

TEST_F(PreferenceCommand, BadInputIsRefusedBeforeAnyWork) {
  const auto refused = [&](const Words& more, const std::string& part) {
    const auto result = train("bad", more);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    expect_contains(result.err, part);
    EXPECT_FALSE(fs::exists(folder_ / "bad" / "metrics.jsonl"));
  };
  refused({"--ref_model=" + path("nowhere")}, "nowhere");
  refused({"--ref_model=" + (golden_dir() / "hf" / "qwen3_moe").string()}, "has a vocabulary of 256 ids");
  refused({"--dataset=single"}, "\"ranking\": true");
  refused({"--dataset=empty_answer"}, "the rejected answer is empty");
  refused({"--cutoff_len=1"}, "does not fit: cutoff_len 1");
  refused({"--packing"}, "packing does not work with stage dpo");
  refused({"--pref_loss=orpo", "--ref_model=" + reference()}, "pref_loss orpo has no reference model");
  refused({"--pref_loss=kto_pair"}, "kto_pair");
  refused({"--stage=kto"}, "which only stages dpo and rm train on");
  refused({"--stage=kto", "--dataset=single"}, "stage kto needs answers with verdicts");
  refused({"--dataset=rated"}, "stage dpo needs preference pairs");
  refused({"--stage=sft", "--dataset=rated"}, "which only stage kto trains on");
}

}  // namespace
}  // namespace megalith::testing
