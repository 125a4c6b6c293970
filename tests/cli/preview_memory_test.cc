#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/preview_support.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace megalith::cli {
namespace {

TEST(PreviewMemory, shows_every_stage_and_its_parts) {
  const Answer answer =
      preview("memory --world-size 8 --tp 2 --pp 2 --cutoff_len 512 --gpu h200" + golden_model("llama"));
  EXPECT_EQ(answer.exit_code, kDone) << answer.error;
  for (const char* part : {"parameters", "gradients", "optimizer", "activations", "in flight", "fullest", "it fits"})
    EXPECT_TRUE(contains(answer.out, part)) << part << "\n" << answer.out;
}

TEST(PreviewMemory, gives_numbers_as_json) {
  const auto plan = preview("memory --world-size 4 --pp 2 --bf16 --json" + golden_model("qwen3")).json();
  ASSERT_EQ(plan.at("stages").size(), 2U);
  const auto& stage = plan.at("stages")[0];
  EXPECT_GT(stage.at("parameters"), 0);
  // bf16: 2 + 4 + 12 bytes, without a distributed optimizer.
  EXPECT_DOUBLE_EQ(stage.at("gradients").get<double>(), 2 * stage.at("parameters").get<double>());
  EXPECT_DOUBLE_EQ(stage.at("optimizer").get<double>(), 6 * stage.at("parameters").get<double>());
  EXPECT_EQ(plan.at("layout").at("dp"), 2);
  EXPECT_FALSE(plan.contains("fits"));
}

TEST(PreviewMemory, shows_the_share_of_fp8) {
  const std::string words =
      "memory --world-size 2 --tp 2 --bf16 --fp8 hybrid --cutoff_len 512" + golden_model("qwen2_moe");
  const Answer answer = preview(words);
  EXPECT_EQ(answer.exit_code, kDone) << answer.error;
  for (const char* part :
       {"fp8: ", " % of the FLOPs; in bf16:", " % head: ", " % experts: ", " % attention: ", "routers: "})
    EXPECT_TRUE(contains(answer.out, part)) << part << "\n" << answer.out;
  const double share = preview(words + " --json").json().at("fp8_share").get<double>();
  EXPECT_GT(share, 0.1);
  EXPECT_LT(share, 0.9);
  EXPECT_FALSE(contains(preview("memory --world-size 2 --bf16" + golden_model("llama")).out, "fp8"));
}

// Sounds and images are assumed, and as many as the options say.
TEST(PreviewMemory, counts_images_and_sounds) {
  const std::string words = "memory --world-size 1 --cutoff_len 512 --bf16 --freeze_vision_tower false";
  const std::string hearing = words + golden_model("qwen3_omni_moe");
  const Answer answer = preview(hearing + " --sounds_per_sample 2 --sound_seconds 3.5");
  EXPECT_EQ(answer.exit_code, kDone) << answer.error;
  EXPECT_TRUE(contains(answer.out, "2 sounds of 350 frames (sounds_per_sample, sound_seconds)")) << answer.out;
  const auto peak_of = [&](const char* sounds) { return preview(hearing + " --json" + sounds).json(); };
  const auto none = peak_of(" --sounds_per_sample 0"), two = peak_of(" --sounds_per_sample 2");
  EXPECT_FALSE(none.contains("sounds"));
  EXPECT_EQ(two.at("sounds").at("per_sample"), 2);
  EXPECT_EQ(two.at("sounds").at("frames"), 3000);
  EXPECT_GT(two.at("peak").get<double>(), none.at("peak").get<double>());
  const Answer seeing = preview(words + golden_model("qwen2_vl") + " --sounds_per_sample 1");
  EXPECT_TRUE(contains(seeing.error, "sounds_per_sample and sound_seconds are for models that hear")) << seeing.error;
}

// A run that adds a token to the model trains embedding and head besides its adapter (additional_target).
TEST(PreviewMemory, counts_rows_that_an_adapter_trains_because_of_growth) {
  const testing::TempFolder folder;
  std::filesystem::copy_file(testing::golden_dir() / "hf" / "llama" / "config.json", folder / "config.json");
  nlohmann::json vocab;
  for (int id = 0; id < 512; ++id) vocab["w" + std::to_string(id)] = id;
  std::ofstream(folder / "tokenizer.json")
      << nlohmann::json{{"pre_tokenizer", {{"type", "Whitespace"}}},
                        {"model", {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", "w0"}}}};
  const std::string words =
      "memory --world-size 1 --finetuning_type lora --bf16 --json --model " + folder.path().string();
  const auto stage_of = [&](const std::string& more) { return preview(words + more).json().at("stages")[0]; };
  const auto number = [](const nlohmann::json& stage, const char* part) { return stage.at(part).get<double>(); };
  const auto plain = stage_of(""), named = stage_of(" --additional_target embed_tokens,lm_head"),
             grown = stage_of(" --add_tokens <new>");
  const double rows = 2.0 * 640 * 64;  // embedding and head: 513 ids, padded to 576 rows and these to a multiple of 128
  EXPECT_NEAR(number(grown, "gradients") - number(plain, "gradients"), 4 * rows, 0.02 * rows);
  EXPECT_NEAR(number(grown, "optimizer") - number(plain, "optimizer"), 12 * rows, 0.06 * rows);
  EXPECT_LT(number(named, "gradients"), number(grown, "gradients"));
  EXPECT_GT(number(named, "gradients"), number(plain, "gradients"));
}

TEST(PreviewMemory, takes_a_shape_from_megatrons_options) {
  const Answer answer = preview(
      "memory --world-size 8 --tp 8 --dialect pretrain --num-layers 4 --hidden-size 1024 --num-attention-heads 16"
      " --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 1 --json");
  EXPECT_EQ(answer.exit_code, kDone) << answer.error;
  EXPECT_EQ(answer.json().at("layout").at("sequence_length"), 2048);
}

TEST(PreviewMemory, says_what_is_wrong) {
  EXPECT_TRUE(contains(preview("memory --world-size 8").error, "--model DIR"));
  EXPECT_TRUE(contains(preview("memory" + golden_model("llama")).error, "world_size is not given"));
  EXPECT_TRUE(contains(preview("memory --world-size 8 --gpu h300" + golden_model("llama")).error, "h200"));
  EXPECT_TRUE(contains(preview("memory --world-size 6 --tp 4" + golden_model("llama")).error, "6"));
  EXPECT_TRUE(
      contains(preview("memory --world-size 3 --tp 3" + golden_model("llama")).error, "tensor_model_parallel_size 3"));
  EXPECT_TRUE(contains(preview("memory --world-size 4 --ep 2" + golden_model("llama")).error, "no experts"));
}

}  // namespace
}  // namespace megalith::cli
