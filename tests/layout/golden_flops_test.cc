#include <gtest/gtest.h>

#include "megalith/layout/flops/model_flops.h"
#include "tests/layout/golden_shape.h"
#include "tests/support/golden.h"

namespace megalith::layout {
namespace {

using nlohmann::json;

std::vector<bool> moe_layers(const json& args) {
  std::vector<bool> layers(args.at("num_layers").get<size_t>(), false);
  if (!optional_member<int>(args, "num_experts")) return layers;
  const json& freq = args.at("moe_layer_freq");
  for (size_t i = 0; i < layers.size(); ++i)
    layers[i] = freq.is_array() ? freq.at(i).get<int>() == 1 : i % freq.get<size_t>() == 0;
  return layers;
}

ModelFlopsShape flops_shape(const json& args) {
  ModelFlopsShape shape;
  shape.hidden_size = args.at("hidden_size");
  shape.ffn_hidden_size = args.at("ffn_hidden_size");
  shape.gated_mlp = args.at("swiglu");
  shape.num_heads = args.at("num_attention_heads");
  shape.num_kv_heads =
      args.at("group_query_attention").get<bool>() ? args.at("num_query_groups").get<int64_t>() : shape.num_heads;
  shape.head_dim = args.at("kv_channels");
  shape.output_gate = args.at("attention_output_gate");
  shape.padded_vocab_size = args.at("padded_vocab_size");
  shape.mtp_layers = optional_member<int64_t>(args, "mtp_num_layers").value_or(0);
  shape.layer_is_moe = moe_layers(args);
  shape.expert_ffn_hidden_size = optional_member<int64_t>(args, "moe_ffn_hidden_size").value_or(shape.ffn_hidden_size);
  shape.experts_per_token = args.at("moe_router_topk");
  shape.shared_expert_ffn_hidden_size =
      optional_member<int64_t>(args, "moe_shared_expert_intermediate_size").value_or(0);
  if (args.at("multi_latent_attention"))
    shape.mla = ModelFlopsShape::Mla{optional_member<int64_t>(args, "q_lora_rank"), args.at("kv_lora_rank"),
                                     args.at("qk_head_dim"), args.at("qk_pos_emb_head_dim"), args.at("v_head_dim")};
  return shape;
}

TEST(GoldenFlops, EveryCaseOfFlopsFile) {
  for (const json& item : golden_list(testing::golden_json("parallel/flops.json"), "cases")) {
    SCOPED_TRACE(item.value("name", ""));
    const json& args = item.at("args");
    const double expected = item.at("flops").get<double>();
    const double flops =
        model_flops(flops_shape(args), item.at("batch_size").get<int64_t>(), args.at("seq_length").get<int64_t>());
    EXPECT_NEAR(flops, expected, 1e-12 * expected);
  }
}

TEST(ModelFlops, PackedSequencesCountTheirOwnLengths) {
  ModelFlopsShape shape{.hidden_size = 8,
                        .ffn_hidden_size = 16,
                        .num_heads = 2,
                        .num_kv_heads = 2,
                        .head_dim = 4,
                        .padded_vocab_size = 32,
                        .layer_is_moe = {false}};
  // One of 6 and one of 2 tokens: as much as both alone.
  EXPECT_DOUBLE_EQ(model_flops(shape, 8.0, 36.0 + 4.0),
                   model_flops(shape, int64_t{1}, int64_t{6}) + model_flops(shape, int64_t{1}, int64_t{2}));
  // By hand, one token: MLP 2*8*16, projections 4*8*8, head 8*32, one pair of positions 8.
  EXPECT_DOUBLE_EQ(model_flops(shape, int64_t{1}, int64_t{1}), 6.0 * (256 + 256 + 256 + 8));
}

// Two images, 2 x 4 patches and 2 frames of 4 x 2; every product counted by hand.
TEST(VisionFlops, CountsEveryProduct) {
  const VisionFlopsShape shape{.depth = 3, .width = 8, .mlp_width = 10, .patch_numbers = 24, .out_width = 6};
  VisionWork work;
  work.add(shape, 1, 2, 4);
  work.add(shape, 2, 4, 2);
  EXPECT_EQ(work.patches, 8 + 16);
  EXPECT_EQ(work.frame_pairs, 64 + 2 * 64);
  EXPECT_EQ(work.window_pairs, 0);
  const double patch = 24 * 24 * 8, qkv = 24 * 8 * 24, out = 24 * 8 * 8, mlp = 24 * (8 * 10 + 10 * 8);
  const double scores = 192 * 8, values = 192 * 8;
  const double merger = 6 * (32 * 32 + 32 * 6);  // 24 patches are 6 rows of 4 · 8
  const double forward = 2 * (patch + 3 * (qkv + out + mlp + scores + values) + merger);
  EXPECT_EQ(vision_flops(shape, work, true, true), forward);
  EXPECT_EQ(vision_flops(shape, work, false, false), 3 * forward);
  EXPECT_EQ(vision_flops(shape, work, true, false), forward + 2 * 2 * merger);
  VisionFlopsShape more = shape;
  more.deepstack = 2;
  more.gated_mlp = true;
  EXPECT_EQ(vision_flops(more, work, true, true), forward + 2 * (2 * merger + 3 * 24 * 10 * 8));
  // A tower that is trained below a frozen merger.
  EXPECT_EQ(vision_flops(more, work, false, true), 3 * vision_flops(more, work, true, true) - 2 * 2 * merger);
}

// 6 x 10 patches are 3 x 5 rows; windows of 2 x 2 rows, those at the border smaller.
TEST(VisionFlops, WindowsAreSmallerAtTheBorder) {
  const VisionFlopsShape shape{
      .depth = 4, .width = 8, .mlp_width = 10, .patch_numbers = 24, .out_width = 6, .window_side = 2, .full_blocks = 1};
  VisionWork work;
  work.add(shape, 2, 6, 10);
  EXPECT_EQ(work.frame_pairs, 2 * 60 * 60);
  // Rows per window: 4 4 2 over 2 2 1, in each frame; each row is 4 patches.
  EXPECT_EQ(work.window_pairs, 2 * 16 * (16 + 16 + 4 + 4 + 4 + 1));
  VisionFlopsShape whole = shape;
  whole.window_side = 0;
  const double less = 3 * 2 * 2 * 8 * (work.frame_pairs - work.window_pairs);  // three blocks, two products each
  EXPECT_EQ(vision_flops(whole, work, true, true) - vision_flops(shape, work, true, true), less);
}

// Sounds of 230 and 40 frames; every product counted by hand.
TEST(AudioFlops, CountsEveryProduct) {
  const AudioFlopsShape shape{.depth = 3,
                              .width = 8,
                              .mlp_width = 10,
                              .mel_bins = 16,
                              .chunk = 100,
                              .channels = 4,
                              .window_rows = 26,
                              .out_width = 6};
  AudioWork work;
  work.add(shape, 230);
  work.add(shape, 40);
  EXPECT_EQ(work.chunks, 3 + 1);
  EXPECT_EQ(work.rows, 13 + 13 + 4 + 5);  // 30 frames: 15, 8, 4; 40: 20, 10, 5
  EXPECT_EQ(work.window_pairs, 26 * 26 + 4 * 4 + 5 * 5);
  // A chunk is 16 x 100, then 8 x 50, 4 x 25 and 2 x 13.
  const double convolutions = 4 * (8 * 50 * 4 * 9 + 4 * 25 * 4 * 9 * 4 + 2 * 13 * 4 * 9 * 4);
  const double frame = 35 * (4 * 2) * 8, qkv = 35 * 8 * 24, out = 35 * 8 * 8, mlp = 35 * (8 * 10 + 10 * 8);
  const double attention = 2 * 8 * work.window_pairs;
  const double projector = 35 * (8 * 8 + 8 * 6);
  const double forward = 2 * (convolutions + frame + 3 * (qkv + out + mlp + attention) + projector);
  EXPECT_EQ(audio_flops(shape, work, true, true), forward);
  EXPECT_EQ(audio_flops(shape, work, false, false), 3 * forward);
  EXPECT_EQ(audio_flops(shape, work, true, false), forward + 2 * 2 * projector);
}

}  // namespace
}  // namespace megalith::layout
