// `megalith train` with weights in 4 and 8 bits: an adapter that other commands use with the original base, and
// refusals.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Words = std::vector<std::string>;

ProcessResult train_quantized(const TempFolder& folder, const std::string& model, const Words& more) {
  std::ofstream data(folder / "data.jsonl");
  for (int i = 0; i < 12; ++i) {
    json ids = json::array();
    for (int t = 0; t < 5 + i % 4; ++t) ids.push_back((i * 7 + t * 13) % 60 + 2);
    data << json{{"input_ids", ids}, {"labels", ids}}.dump() << "\n";
  }
  data.close();
  Words words{MEGALITH_PROGRAM,
              "train",
              "--use_cpu",
              "--model_name_or_path=" + (golden_dir() / "hf" / model).string(),
              "--dataset=" + (folder / "data.jsonl").string(),
              "--output_dir=" + (folder / "out").string(),
              "--per_device_train_batch_size=3",
              "--max_steps=2",
              "--logging_steps=1",
              "--overwrite_output_dir"};
  words.insert(words.end(), more.begin(), more.end());
  return run_process(words, {{"XDG_CACHE_HOME", (folder / "cache").string()}});
}

void expect_adapter_for_the_original_base(const std::string& bits) {
  const TempFolder folder;
  const ProcessResult result = train_quantized(
      folder, "llama",
      {"--quantization_bit=" + bits, "--bf16", "--finetuning_type=lora", "--lora_rank=4", "--nproc=2", "--tp=2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(fs::exists(folder / "out" / "adapter_model.safetensors"));
  std::ifstream config(folder / "out" / "adapter_config.json");
  EXPECT_EQ(json::parse(config).at("peft_type"), "LORA");
  const ProcessResult merged =
      run_process({MEGALITH_PROGRAM, "convert", "--checkpoint_path=" + (golden_dir() / "hf" / "llama").string(),
                   "--adapter_path=" + (folder / "out").string(), "--output_path=" + (folder / "merged").string()},
                  {});
  EXPECT_EQ(merged.exit_code, 0) << merged.err;
}

TEST(QuantizedCommand, TrainsAnAdapterForTheOriginalBase) {
  for (const char* bits : {"4", "8"}) expect_adapter_for_the_original_base(bits);
}

TEST(QuantizedCommand, SaysThatExpertsStayAsTheyAre) {
  const TempFolder folder;
  const ProcessResult result =
      train_quantized(folder, "qwen3_moe", {"--quantization_bit=4", "--finetuning_type=lora", "--lora_rank=4"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.err, "quantization_bit 4: the weights of experts");
}

TEST(QuantizedCommand, RefusesWhatDoesNotFit) {
  const TempFolder folder;
  const auto refusal = [&](const Words& words) {
    const ProcessResult result = train_quantized(folder, "llama", words);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    return result.err;
  };
  const std::string lora = "--finetuning_type=lora", four_bit = "--quantization_bit=4";
  expect_contains(refusal({lora, "--quantization_bit=3"}), "set quantization_bit 4 or 8");
  expect_contains(refusal({lora, "--quantization_bit=8", "--quantization_type=fp4"}), "leave them out");
  expect_contains(refusal({four_bit, "--finetuning_type=full"}), "set finetuning_type lora");
  expect_contains(refusal({four_bit, lora, "--bf16", "--fp8=hybrid"}), "exclude each other");
  expect_contains(refusal({four_bit, lora, "--save_merged_model"}), "megalith convert");
  expect_contains(refusal({four_bit, lora, "--adapter_name_or_path=a,b"}), "takes one adapter");
  expect_contains(refusal({lora, "--quantization_type=fp4"}), "need quantization_bit 4");
}

}  // namespace
}  // namespace megalith::testing
