// `megalith train` names the products that fp8 leaves out.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

struct Fp8Said {
  std::string err;
  std::vector<json> lines;  // from metrics.jsonl
};

Fp8Said train_in_fp8(const TempFolder& folder, const Words& more) {
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
              "--bf16",
              "--model_name_or_path=" + (golden_dir() / "hf" / "llama").string(),
              "--dataset=" + (folder / "data.jsonl").string(),
              "--output_dir=" + (folder / "out").string(),
              "--per_device_train_batch_size=3",
              "--max_steps=2",
              "--logging_steps=1",
              "--save_strategy=no",
              "--overwrite_output_dir"};
  words.insert(words.end(), more.begin(), more.end());
  const ProcessResult result = run_process(words, {{"XDG_CACHE_HOME", (folder / "cache").string()}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  Fp8Said said{result.err, {}};
  std::ifstream file(folder / "out" / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) said.lines.push_back(json::parse(line));
  return said;
}

TEST(Fp8Command, SaysWhatStaysInBf16) {
  const TempFolder folder;
  const Words lora{"--finetuning_type=lora", "--lora_rank=4"};
  Words in_fp8 = lora;
  in_fp8.emplace_back("--fp8=hybrid");
  const Fp8Said without = train_in_fp8(folder, lora), with = train_in_fp8(folder, in_fp8);
  for (const char* part : {"\nfp8         ", " % of the FLOPs\n", "\nbf16        ", " % head: its rounding errors",
                           " % adapters: their products are narrow"})
    expect_contains(with.err, part);
  EXPECT_EQ(without.err.find("\nfp8 "), std::string::npos) << without.err;
  ASSERT_FALSE(with.lines.empty());
  EXPECT_GT(with.lines[0].at("fp8_share").get<double>(), 0.05);  // most of so small a model is attention
  EXPECT_LT(with.lines[0].at("fp8_share").get<double>(), 0.9);
  EXPECT_FALSE(without.lines.at(0).contains("fp8_share"));
  EXPECT_NE(with.lines[0].at("loss"), without.lines[0].at("loss")) << "adapted layers ran without fp8";
}

// Every width of this model is below 512.
TEST(Fp8Command, SaysThatNothingFits) {
  const TempFolder folder;
  const Fp8Said said =
      train_in_fp8(folder, {"--finetuning_type=full", "--fp8=e4m3", "--fp8_recipe=blockwise", "--nproc=2", "--tp=2"});
  expect_contains(said.err, "fp8         0.0 % of the FLOPs");
  expect_contains(said.err, "layers.*.mlp.down.weight: its sizes on a rank, 64 x 64, are not multiples of 512");
  ASSERT_FALSE(said.lines.empty());
  EXPECT_EQ(said.lines[0].at("fp8_share").get<double>(), 0);
}

}  // namespace
}  // namespace megalith::testing
