#include "tests/cli/preview_support.h"
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
