// A run of another program continues: `megalith convert` reads its weights and its AdamW, and one more step of
// `megalith train` is the step that the program itself takes (tests/data/foreign/make_foreign.py, adam_ids).
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/hf/weight_files.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class ForeignCommand : public ::testing::Test {
 protected:
  ForeignCommand() {
    std::ofstream file(folder_ / "texts.jsonl");
    nlohmann::json first = nlohmann::json::array(), second = nlohmann::json::array();
    for (int i = 0; i < 12; ++i) {
      first.push_back(i * 3 + 3);
      second.push_back((i * 7 + 1) % 50);
    }
    file << nlohmann::json{{"input_ids", first}} << "\n" << nlohmann::json{{"input_ids", second}} << "\n";
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string data(const std::string& name) { return "tests/data/foreign/" + name; }

  ProcessResult convert(const std::string& name) const {
    return run_process({MEGALITH_PROGRAM, "convert", "--checkpoint_path=" + data(name),
                        "--config_path=" + data("qwen2"), "--output_path=" + path(name)});
  }
  // Trains up to step 3 with the options of make_foreign.py.
  ProcessResult train(const std::string& from, const std::string& output, const Words& more = {}) const {
    Words words{MEGALITH_PROGRAM,
                "train",
                "--stage=pt",
                "--finetuning_type=full",
                "--use_cpu",
                "--model_name_or_path=" + data("qwen2"),
                "--resume_from_checkpoint=" + from,
                "--dataset=" + path("texts.jsonl"),
                "--packing=false",
                "--output_dir=" + path(output),
                "--per_device_train_batch_size=2",
                "--max_steps=3",
                "--learning_rate=0.01",
                "--lr_scheduler_type=constant",
                "--adam_beta2=0.95",
                "--weight_decay=0.1",
                "--max_grad_norm=1000",
                "--save_strategy=no"};
    words.insert(words.end(), more.begin(), more.end());
    return run_process(words, {{"XDG_CACHE_HOME", path("cache")}});
  }
  void expect_next_weights(const std::string& output, double tolerance) const {
    const hf::WeightFiles made(folder_ / output), expected(data("qwen2_adam_next"));
    for (const std::string& name : expected.names())
      expect_close(made.tensor(name), expected.tensor(name), name, tolerance);
  }

  TempFolder folder_;
};

// The names of FSDP: the same program takes the third step. Two steps of it in fp32 and in fp64 differ by 1.6e-6.
TEST_F(ForeignCommand, TheNextStepOfTorchIsTaken) {
  const auto converted = convert("qwen2_adam_fsdp");
  ASSERT_EQ(converted.exit_code, 0) << converted.err;
  const auto run = train(path("qwen2_adam_fsdp"), "out");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  expect_next_weights("out", 5e-6);
  const auto verified =
      run_process({MEGALITH_PROGRAM, "convert", "--checkpoint_path=" + path("qwen2_adam_fsdp"), "--verify"});
  EXPECT_EQ(verified.exit_code, 0) << verified.err;
  expect_contains(verified.err, "step 2");
}

// Megatron-Core's first two steps are torch's, to 1e-6, and so is the third in any layout.
TEST_F(ForeignCommand, MegatronContinuesInAnyLayout) {
  const auto converted = convert("qwen2_adam_torch_dist");
  ASSERT_EQ(converted.exit_code, 0) << converted.err;
  for (const Words& layout : {Words{}, Words{"--nproc=4", "--tp=2", "--pp=2"}}) {
    const std::string output = fmt::format("out-{}", layout.size());
    const auto run = train(path("qwen2_adam_torch_dist"), output, layout);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    expect_next_weights(output, 1e-5);
  }
}

TEST_F(ForeignCommand, StateThatCannotBeReadIsNamed) {
  const auto converted = convert("qwen2_adam_flat");
  ASSERT_EQ(converted.exit_code, 0) << converted.err;
  expect_contains(converted.err, "--dist-ckpt-optim-fully-reshardable");
  EXPECT_FALSE(fs::exists(folder_ / "qwen2_adam_flat" / "optimizer.safetensors"));
  const auto run = train(path("qwen2_adam_flat"), "out");
  EXPECT_EQ(run.exit_code, 2);
}

}  // namespace
}  // namespace megalith::testing
