// Vocabularies that grow, as a person meets them: `megalith train` with add_tokens, add_special_tokens and
// resize_vocab, and other commands on its results.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/hf/safetensors_file.h"
#include "megalith/hf/weight_files.h"
#include "megalith/tokenizer/tokenizer.h"
#include "tests/cli/program_support.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Words = std::vector<std::string>;

// Golden llama (untied, 512 rows) and qwen2 (tied, 256 rows) with a tokenizer of 512 ids; texts with words that become
// tokens.
class VocabularyCommand : public ::testing::Test {
 protected:
  VocabularyCommand() {
    std::ofstream texts(folder_ / "texts.txt"), records(folder_ / "sft.jsonl"), pairs(folder_ / "dpo.jsonl");
    uint64_t state = 1;
    for (int i = 0; i < 200; ++i) {
      std::string line;
      for (int k = 0; k < 40; ++k) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        line += static_cast<char>((state >> 60) < 3 ? ' ' : 'a' + (state >> 33) % 26);
      }
      texts << line << "\n";
      if (i >= 16) continue;
      const json record{{"instruction", line.substr(0, 12) + "<call>"}, {"output", "kilonova " + line.substr(12, 8)}};
      records << record.dump() << "\n";
      pairs << json{{"instruction", record["instruction"]}, {"chosen", record["output"]}, {"rejected", "no <call>"}}
                   .dump()
            << "\n";
    }
    texts.close();
    std::ofstream(folder_ / "dataset_info.json")
        << json{{"sft", {{"file_name", "sft.jsonl"}}},
                {"dpo",
                 {{"file_name", "dpo.jsonl"},
                  {"ranking", true},
                  {"columns", {{"prompt", "instruction"}, {"chosen", "chosen"}, {"rejected", "rejected"}}}}}}
               .dump();
    for (const char* name : {"llama", "qwen2"}) {
      const auto made = megalith({"data", "train-tokenizer", path("texts.txt"), "--vocab-size", "512", "--output",
                                  path(name), "--special_tokens", "<|endoftext|>,<|im_start|>,<|im_end|>"});
      EXPECT_EQ(made.exit_code, 0) << made.err;
      for (const char* file : {"config.json", "model.safetensors"})
        fs::copy_file(golden_dir() / "hf" / name / file, folder_ / name / file);
    }
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  json config_of(const std::string& name) const { return json::parse(std::ifstream(folder_ / name / "config.json")); }

  // Three steps of a full run with two new tokens; `more` wins.
  ProcessResult train(const std::string& output, const Words& more, bool adds = true) const {
    Words words{"train",
                "--finetuning_type=full",
                "--use_cpu",
                "--template=chatml",
                "--model_name_or_path=" + path("llama"),
                "--dataset_dir=" + folder_.path().string(),
                "--dataset=sft",
                "--output_dir=" + path(output),
                "--per_device_train_batch_size=4",
                "--max_steps=3",
                "--learning_rate=1e-3",
                "--lr_scheduler_type=constant",
                "--calculate_per_token_loss",
                "--logging_steps=1",
                "--save_strategy=no"};
    if (adds) words.insert(words.end(), {"--add_tokens=kilonova", "--add_special_tokens=<call>"});
    words.insert(words.end(), more.begin(), more.end());
    return megalith(words, {{"XDG_CACHE_HOME", path("cache")}});
  }
  std::vector<double> losses(const std::string& output) const {
    std::vector<double> all;
    std::ifstream file(folder_ / output / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (const json parsed = json::parse(line); parsed.contains("loss")) all.push_back(parsed.at("loss"));
    return all;
  }
  void expect_losses(const std::string& output, const std::vector<double>& expected, double tolerance = 1e-4) const {
    const std::vector<double> actual = losses(output);
    ASSERT_EQ(actual.size(), expected.size()) << output;
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], tolerance) << output << " " << i;
  }
  void expect_done(const ProcessResult& result, const std::string& words = "") const {
    ASSERT_EQ(result.exit_code, 0) << result.err;
    expect_contains(result.err, words);
  }

  // The mean loss of a fixed batch with the new ids.
  double score(const Words& model) const {
    const fs::path input = folder_ / "batch.safetensors";
    if (!fs::exists(input)) {
      const std::string header = R"({"input_ids":{"dtype":"I64","shape":[1,8],"data_offsets":[0,64]}})";
      const uint64_t size = header.size();
      const int64_t ids[8] = {5, 512, 9, 513, 40, 512, 513, 7};
      std::ofstream file(input, std::ios::binary);
      file.write(reinterpret_cast<const char*>(&size), 8) << header;
      file.write(reinterpret_cast<const char*>(ids), 64);
    }
    Words words{"score", "--input", input.string(), "--output", path("scores.safetensors"), "--json", "--use_cpu"};
    words.insert(words.end(), model.begin(), model.end());
    const auto result = megalith(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.exit_code == 0 ? json::parse(result.out).at("loss").get<double>() : NAN;
  }

  TempFolder folder_;
};

TEST_F(VocabularyCommand, GrowsTheSameInEveryLayout) {
  for (const char* model : {"llama", "qwen2"}) {
    SCOPED_TRACE(model);
    const std::string from = "--model_name_or_path=" + path(model), name = model;
    expect_done(train(name + "1", {from}), " to 576 rows, for a tokenizer of 514 ids");
    const std::vector<double> expected = losses(name + "1");
    ASSERT_EQ(expected.size(), 3U);
    const Words half{from, "--per_device_train_batch_size=2"};
    const auto with = [](Words words, const Words& more) {
      words.insert(words.end(), more.begin(), more.end());
      return words;
    };
    expect_done(train(name + "tp", {from, "--nproc=2", "--tp=2", "--sequence_parallel"}));
    expect_done(train(name + "pp", with(half, {"--nproc=2", "--pp=2", "--gradient_accumulation_steps=2"})));
    expect_done(train(name + "dp", with(half, {"--nproc=2", "--use_distributed_optimizer"})));
    for (const char* layout : {"tp", "pp", "dp"}) expect_losses(name + layout, expected);
    // The folder is a model of its own: tokens, rows and configuration.
    EXPECT_EQ(config_of(name + "tp").at("vocab_size"), 576);
    const auto tokenizer = tokenizer::Tokenizer::from_folder(folder_ / (name + "tp"));
    EXPECT_EQ(tokenizer.id_of("kilonova"), 512);
    EXPECT_EQ(tokenizer.id_of("<call>"), 513);
    EXPECT_TRUE(tokenizer.is_special(513));
    EXPECT_NEAR(score({"--model", path(name + "tp")}), score({"--model", path(name + "1")}), 1e-4);
    // A second run with the same options adds nothing.
    const auto again = train(name + "again", {"--model_name_or_path=" + path(name + "1"), "--max_steps=1"});
    expect_done(again, "the tokenizer has kilonova, <call> already");
    EXPECT_EQ(again.err.find("grows"), std::string::npos);
    EXPECT_EQ(config_of(name + "again").at("vocab_size"), 576);
  }
}

TEST_F(VocabularyCommand, AResumedRunContinuesBitForBit) {
  const Words saves{"--save_strategy=steps", "--save_steps=2", "--max_steps=4"};
  expect_done(train("whole", saves));
  Words resumed = saves;
  resumed.push_back("--resume_from_checkpoint=" + path("whole/checkpoint-2"));
  expect_done(train("resumed", resumed));
  const hf::WeightFiles whole(folder_ / "whole"), again(folder_ / "resumed");
  for (const std::string& name : whole.names()) EXPECT_TRUE(whole.tensor(name).equal(again.tensor(name))) << name;
}

// A run that has not grown continues with a larger vocabulary: its moments come along.
TEST_F(VocabularyCommand, ARunMayGrowWhenItContinues) {
  expect_done(train("small", {"--save_strategy=steps", "--save_steps=2", "--max_steps=4"}, /*adds=*/false));
  EXPECT_EQ(config_of("small").at("vocab_size"), 512);
  const Words on{"--max_steps=4", "--resume_from_checkpoint=" + path("small/checkpoint-2")};
  const auto with = [&](Words more) {
    more.insert(more.begin(), on.begin(), on.end());
    return more;
  };
  expect_done(train("one", with({})));
  EXPECT_EQ(config_of("one").at("vocab_size"), 576);
  const std::vector<double> expected = losses("one");
  ASSERT_EQ(expected.size(), 2U);
  expect_done(train("tp2", with({"--nproc=2", "--tp=2"})));
  expect_done(train("dp2", with({"--nproc=2", "--per_device_train_batch_size=2", "--use_distributed_optimizer"})));
  expect_losses("tp2", expected);
  expect_losses("dp2", expected);
}

TEST_F(VocabularyCommand, AdaptersTrainAndKeepTheNewRows) {
  const Words lora{"--finetuning_type=lora", "--lora_rank=4"};
  expect_done(train("adapter", lora), "embed_tokens,lm_head are trained in full (additional_target)");
  const json config = json::parse(std::ifstream(folder_ / "adapter" / "adapter_config.json"));
  EXPECT_EQ(config.at("modules_to_save"), (json{"embed_tokens", "lm_head"}));
  // The adapter's files say how large the vocabulary is, and its folder has the tokenizer.
  const Words both{"--model", path("llama"), "--adapter_name_or_path", path("adapter")};
  const double loss = score(both);
  Words two = both;
  two.insert(two.end(), {"--nproc=2", "--tp=2"});
  EXPECT_NEAR(score(two), loss, 1e-4);
  const auto merged = megalith({"convert", "--checkpoint_path", path("llama"), "--adapter_path", path("adapter"),
                                "--output_path", path("merged")});
  expect_done(merged);
  EXPECT_EQ(config_of("merged").at("vocab_size"), 576);
  EXPECT_EQ(tokenizer::Tokenizer::from_folder(folder_ / "merged").id_of("<call>"), 513);
  EXPECT_NEAR(score({"--model", path("merged")}), loss, 1e-4);
  Words generate{"generate", "--prompt", "abc<call>", "--max_new_tokens", "3", "--use_cpu"};
  generate.insert(generate.end(), both.begin(), both.end());
  expect_done(megalith(generate));
  // It is trained further, with the tokenizer of its folder.
  Words further = lora;
  further.push_back("--adapter_name_or_path=" + path("adapter"));
  expect_done(train("further", further, /*adds=*/false));
  EXPECT_LT(losses("further")[0], losses("adapter")[0]);
  EXPECT_EQ(tokenizer::Tokenizer::from_folder(folder_ / "further").id_of("<call>"), 513);
}

// As in peft, rows that the base does not have are stored even if they are frozen.
TEST_F(VocabularyCommand, FrozenRowsAreTold) {
  const Words lora{"--finetuning_type=lora", "--lora_rank=4", "--additional_target=norm", "--nproc=2", "--tp=2"};
  expect_done(train("frozen", lora), "new rows of the vocabulary are not trained");
  const hf::WeightFiles files(folder_ / "frozen", "adapter_model.safetensors");
  for (const char* name : {"base_model.model.model.embed_tokens.weight", "base_model.model.lm_head.weight"}) {
    ASSERT_NE(files.find(name), nullptr) << name;
    EXPECT_EQ(files.find(name)->shape, (std::vector<int64_t>{576, 64}));
  }
  const double loss = score({"--model", path("llama"), "--adapter_name_or_path", path("frozen")});
  expect_done(megalith({"convert", "--checkpoint_path", path("llama"), "--adapter_path", path("frozen"),
                        "--output_path", path("merged")}));
  EXPECT_NEAR(score({"--model", path("merged")}), loss, 1e-4);
  expect_refused(
      train("refused", {"--finetuning_type=lora", "--lora_target=q_proj,embed_tokens", "--additional_target=norm"}),
      "lora_target names embed_tokens, and the vocabulary has new rows");
}

// The reference grows as the policy does, so that they start equal; precomputed scores know of the rows.
TEST_F(VocabularyCommand, PreferencesCompareWithAGrownReference) {
  Words words{"--stage=dpo", "--dataset=dpo", "--calculate_per_token_loss=false"};
  for (const char* kind : {"full", "lora"})
    for (const char* precompute : {"false", "true"}) {
      const std::string name = std::string(kind) + precompute;
      Words all = words;
      all.insert(all.end(),
                 {"--finetuning_type=" + std::string(kind), "--precompute_ref_log_probs=" + std::string(precompute)});
      expect_done(train(name, all));
      EXPECT_NEAR(losses(name).at(0), std::log(2), 1e-6) << name;
      expect_losses(name, losses(std::string(kind) + "false"), 1e-5);
    }
  words.insert(words.end(), {"--nproc=2", "--tp=2"});
  expect_done(train("tp", words));
  expect_losses("tp", losses("fullfalse"));
}

TEST_F(VocabularyCommand, TokensWithoutRowsAreNeverLookedUp) {
  // The tokenizer of a grown run beside the smaller model.
  expect_done(train("grown", {"--max_steps=1"}));
  fs::copy_file(folder_ / "grown" / "tokenizer.json", folder_ / "llama" / "tokenizer.json",
                fs::copy_options::overwrite_existing);
  expect_refused(train("none", {}, /*adds=*/false), "outside of the model's vocabulary of 512");
  expect_refused(megalith({"generate", "--model", path("llama"), "--prompt", "ab<call>", "--use_cpu"}),
                 "outside of the model's vocabulary of 512");
  expect_refused(megalith({"eval", "--model_name_or_path", path("llama"), "--dataset_dir", folder_.path().string(),
                           "--eval_dataset", "sft", "--template", "chatml", "--use_cpu"}),
                 "outside of the model's vocabulary of 512");
  expect_done(train("asked", {"--resize_vocab"}, /*adds=*/false), "the vocabulary grows from 512 to 576 rows");
  EXPECT_EQ(config_of("asked").at("vocab_size"), 576);
}

TEST_F(VocabularyCommand, BadTokensAreRefused) {
  expect_refused(train("x", {"--add_tokens=kilonova,kilonova"}), "add_tokens names the token \"kilonova\" again");
  expect_refused(train("x", {"--add_tokens=<call>"}), "add_special_tokens names the token \"<call>\" again");
  fs::remove(folder_ / "llama" / "tokenizer.json");
  expect_refused(train("x", {}), "add_tokens and add_special_tokens need a tokenizer");
  expect_refused(megalith({"generate", "--model", path("qwen2"), "--prompt", "a", "--add_tokens=b", "--use_cpu"}),
                 "this command uses a model as it is");
}

// transformers and peft open what a run has written.
TEST_F(VocabularyCommand, ResultsOpenInTransformersAndPeft) {
  const char* python = std::getenv("MEGALITH_PYTHON");
  if (!python || *python == 0) GTEST_SKIP() << "MEGALITH_PYTHON does not name a Python with transformers and peft";
  if (run_process({python, "-c", "import peft, transformers"}, {}, std::chrono::minutes(3)).exit_code != 0)
    GTEST_SKIP() << "the Python of MEGALITH_PYTHON has no transformers or no peft";
  expect_done(train("full", {}));
  expect_done(train("trained", {"--finetuning_type=lora"}));
  expect_done(train("frozen", {"--finetuning_type=lora", "--additional_target=norm"}));
  const auto opened = [&](const Words& more) {
    Words words{python, "tests/data/peft/grown_loss.py", path("batch.safetensors")};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = run_process(words, {}, std::chrono::minutes(3));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.exit_code == 0 ? std::stod(result.out) : NAN;
  };
  const double full = score({"--model", path("full")});
  EXPECT_NEAR(opened({path("full")}), full, 1e-4);
  for (const char* name : {"trained", "frozen"})
    EXPECT_NEAR(opened({path("llama"), path(name)}),
                score({"--model", path("llama"), "--adapter_name_or_path", path(name)}), 1e-4)
        << name;
}

}  // namespace
}  // namespace megalith::testing
