// `megalith train --teacher_model_name_or_path` as a person meets it: token data, processes, layouts, mistakes.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

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

// Rows of token ids for the golden llama, with the answer of each as labels.
class DistillationCommand : public ::testing::Test {
 protected:
  DistillationCommand() {
    std::ofstream file(folder_ / "texts.jsonl");
    for (int row = 0; row < 4; ++row) {
      json ids = json::array(), labels = json::array();
      for (int i = 0; i < 8 + row % 3; ++i) {
        ids.push_back((row * 31 + i * 7) % 500);
        labels.push_back(i < 3 ? json(-100) : ids.back());
      }
      file << json{{"input_ids", ids}, {"labels", labels}}.dump() << "\n";
    }
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string golden(const std::string& name) { return (golden_dir() / "hf" / name).string(); }
  static std::string teacher() { return "--teacher_model_name_or_path=" + golden("preference/ref"); }

  // Options of every run here; `more` wins.
  ProcessResult train(const std::string& output, const Words& more) const {
    Words words{MEGALITH_PROGRAM,
                "train",
                "--stage=sft",
                "--finetuning_type=full",
                "--use_cpu",
                "--model_name_or_path=" + golden("llama"),
                "--dataset=" + path("texts.jsonl"),
                "--output_dir=" + path(output),
                "--per_device_train_batch_size=2",
                "--gradient_accumulation_steps=2",
                "--max_steps=4",
                "--optimizer=sgd",
                "--learning_rate=0.05",
                "--calculate_per_token_loss",
                "--logging_steps=1",
                "--save_strategy=no"};
    words.insert(words.end(), more.begin(), more.end());
    return run_process(words, {{"XDG_CACHE_HOME", path("cache")}});
  }

  std::vector<json> lines(const std::string& output) const { return logged_lines(folder_ / output); }
  std::vector<double> numbers(const std::string& output, const std::string& key) const {
    return logged_numbers(folder_ / output, key);
  }

  TempFolder folder_;
};

TEST_F(DistillationCommand, MovesTowardsTheTeacherInEveryLayout) {
  const Words taught{teacher(), "--kd_loss=jsd", "--kd_beta=0.3", "--kd_ratio=0.8"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), taught.begin(), taught.end());
    return more;
  };
  const auto alone = train("alone", with({}));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const auto losses = numbers("alone", "loss"), kd = numbers("alone", "kd_loss"), lm = numbers("alone", "lm_loss");
  ASSERT_EQ(losses.size(), 4U);
  EXPECT_LT(losses.back(), losses.front());
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], 0.2 * lm[i] + 0.8 * kd[i], 2e-5);
  const auto spread = train("spread", with({"--nproc=4", "--tp=2", "--pp=2"}));
  ASSERT_EQ(spread.exit_code, 0) << spread.err;
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(numbers("spread", "loss")[i], losses[i], 2e-4);
  const auto adapter = train("adapter", with({"--finetuning_type=lora", "--learning_rate=0.1"}));
  ASSERT_EQ(adapter.exit_code, 0) << adapter.err;
  EXPECT_TRUE(fs::exists(folder_ / "adapter" / "adapter_model.safetensors"));
  // The trained model is nearer to the teacher than it was.
  const auto evaluated = [&](const std::string& model) {
    const auto result = run_process({MEGALITH_PROGRAM, "eval", "--use_cpu", "--model=" + model, teacher(),
                                     "--kd_loss=reverse_kl", "--eval_dataset=" + path("texts.jsonl"), "--json"},
                                    {{"XDG_CACHE_HOME", path("cache")}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const json metrics = json::parse(result.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(metrics.contains("eval_lm_loss")) << result.out;
    EXPECT_FALSE(metrics.contains("eval_perplexity"));
    return metrics.value("eval_kd_loss", -1.0);
  };
  EXPECT_LT(evaluated(path("alone")), evaluated(golden("llama")));
  // The teacher itself is as near as can be.
  EXPECT_NEAR(evaluated(golden("preference/ref")), 0, 1e-6);
}

// The teacher runs once, in another layout; training with its files is training beside it.
TEST_F(DistillationCommand, FilesTakeTheTeachersPlace) {
  const Words data{"--stage=sft", "--use_cpu", "--model_name_or_path=" + golden("llama"),
                   "--dataset=" + path("texts.jsonl")};
  const auto write = [&](const std::string& name, const Words& more) {
    Words words{MEGALITH_PROGRAM, "distill", teacher(), "--teacher_logits_path=" + path(name)};
    words.insert(words.end(), data.begin(), data.end());
    words.insert(words.end(), more.begin(), more.end());
    return run_process(words, {{"XDG_CACHE_HOME", path("cache")}});
  };
  const auto whole = write("whole", {"--kd_top_k=512", "--nproc=4", "--tp=2", "--pp=2"});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  expect_contains(whole.err, "the 512 likeliest tokens of 23 labelled tokens in 4 texts are in");
  const Words loss{"--kd_loss=reverse_kl", "--kd_ratio=0.8"};
  const auto with = [&](const std::string& source, Words more) {
    more.push_back(source);
    more.insert(more.end(), loss.begin(), loss.end());
    return more;
  };
  const auto beside = train("beside", with(teacher(), {}));
  ASSERT_EQ(beside.exit_code, 0) << beside.err;
  const auto files = train("files", with("--teacher_logits_path=" + path("whole"), {"--nproc=2", "--tp=2"}));
  ASSERT_EQ(files.exit_code, 0) << files.err;
  for (const char* key : {"loss", "kd_loss", "lm_loss"}) {
    ASSERT_EQ(numbers("files", key).size(), 4U);
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(numbers("files", key)[i], numbers("beside", key)[i], 2e-5) << key;
  }
  // Few tokens in 16 bits, with the tail of another temperature.
  const auto few = write("few", {"--kd_top_k=8", "--kd_temperature=2", "--dtype=fp16"});
  ASSERT_EQ(few.exit_code, 0) << few.err;
  const auto taught = train("taught", {"--teacher_logits_path=" + path("few"), "--kd_temperature=2", "--kd_top_k=4"});
  ASSERT_EQ(taught.exit_code, 0) << taught.err;
  EXPECT_LT(numbers("taught", "kd_loss").back(), numbers("taught", "kd_loss").front());
  const auto evaluated =
      run_process({MEGALITH_PROGRAM, "eval", "--use_cpu", "--model=" + golden("preference/ref"),
                   "--teacher_logits_path=" + path("few"), "--eval_dataset=" + path("texts.jsonl"), "--json"},
                  {{"XDG_CACHE_HOME", path("cache")}});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_NEAR(json::parse(evaluated.out).at("eval_kd_loss").get<double>(), 0, 1e-4);
  const auto refused = [](const ProcessResult& result, const std::string& part) {
    EXPECT_EQ(result.exit_code, 2) << result.err;
    expect_contains(result.err, part);
  };
  refused(write("few", {}), "exists already");
  refused(write("other", {"--dtype=fp8"}), "dtype is \"fp8\"; it must be fp32, bf16 or fp16");
  refused(train("bad", {"--teacher_logits_path=" + path("few"), "--kd_temperature=3"}), "at temperature 1 and 2 only");
  refused(train("bad", {"--teacher_logits_path=" + path("few"), "--kd_top_k=9"}), "keep the 8 likeliest tokens");
  refused(train("bad", {"--teacher_logits_path=" + path("few"), teacher()}), "leave out one of them");
  refused(train("bad", {"--teacher_logits_path=" + path("nowhere")}), "holds no index.json");
  refused(train("bad", {"--teacher_logits_path=" + path("few"), "--cutoff_len=7"}),
          "cutoff_len is 7, and was 2048 when the files were written");
  EXPECT_FALSE(fs::exists(folder_ / "bad" / "metrics.jsonl"));
}

TEST_F(DistillationCommand, BadInputIsRefusedBeforeAnyWork) {
  const auto refused = [&](const Words& more, const std::string& part) {
    const auto result = train("bad", more);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    expect_contains(result.err, part);
    EXPECT_FALSE(fs::exists(folder_ / "bad" / "metrics.jsonl"));
  };
  refused({"--teacher_model_name_or_path=" + path("nowhere")}, "nowhere");
  refused({"--teacher_model_name_or_path=" + golden("qwen3")},
          "has a vocabulary of 256 ids, and the model that is trained one of 512");
  refused({"--kd_temperature=2"}, "need a teacher");
  refused({teacher(), "--kd_beta=0.2"}, "kd_beta belongs to kd_loss jsd");
  refused({teacher(), "--stage=dpo"}, "use pt or sft");
  refused({teacher(), "--kd_loss=mse"}, "forward_kl");
  // A folder with config.json alone, and one whose heads do not split.
  fs::create_directory(folder_ / "empty");
  fs::copy_file(fs::path(golden("llama")) / "config.json", folder_ / "empty" / "config.json");
  refused({"--teacher_model_name_or_path=" + path("empty")}, path("empty"));
  fs::create_directory(folder_ / "odd");
  json config = json::parse(std::ifstream(fs::path(golden("llama")) / "config.json"));
  config["num_attention_heads"] = 3;
  config["num_key_value_heads"] = 3;
  config["head_dim"] = 16;
  std::ofstream(folder_ / "odd" / "config.json") << config.dump();
  fs::copy_file(fs::path(golden("llama")) / "model.safetensors", folder_ / "odd" / "model.safetensors");
  refused(
      {"--teacher_model_name_or_path=" + path("odd"), "--nproc=2", "--tp=2"},
      "is split like the model that is trained: tensor_model_parallel_size 2 does not divide the 3 attention heads");
}

}  // namespace
}  // namespace megalith::testing
