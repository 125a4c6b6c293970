// The towers of the golden models against the rows that transformers computes: images, videos and deepstack rows.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/hf/safetensors_file.h"
#include "megalith/hf/weight_files.h"
#include "megalith/io/json_reader.h"
#include "megalith/model/families/vision.h"
#include "megalith/nn/vision/vision_tower.h"
#include "tests/model/tower_files.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/golden_model.h"
#include "tests/support/run_ranks.h"

namespace megalith::testing {
namespace {

// How the files of a model type spell their tower.
struct TowerFiles {
  const char* model_type;
  model::VisionFiles files;
  std::vector<const char*> prefixes;  // one of them
};
const std::vector<TowerFiles>& known_files() {
  using model::VisionFiles;
  static const std::vector<TowerFiles> all{{"qwen2_vl", VisionFiles::kQwen2, {"visual.", "model.visual."}},
                                           {"qwen2_5_vl", VisionFiles::kQwen2_5, {"visual.", "model.visual."}},
                                           {"qwen3_vl", VisionFiles::kQwen3, {"model.visual."}},
                                           {"qwen3_vl_moe", VisionFiles::kQwen3, {"model.visual."}},
                                           {"qwen3_5", VisionFiles::kQwen3, {"model.visual."}},
                                           {"qwen3_5_moe", VisionFiles::kQwen3, {"model.visual."}},
                                           {"qwen3_omni_moe", VisionFiles::kOmni, {"thinker.visual."}}};
  return all;
}
const TowerFiles* find_files(const std::string& type) {
  for (const TowerFiles& files : known_files())
    if (type == files.model_type) return &files;
  return nullptr;
}

std::vector<std::string> golden_towers() {
  std::vector<std::string> names;
  for (const std::string& name : golden_media_names())
    if (find_files(golden_model_type(name))) names.push_back(name);
  return names;
}

nn::VisionShape read_shape(const std::filesystem::path& config, model::VisionFiles files) {
  const io::JsonFile file = io::read_json_file(config);
  const io::JsonFields top = file.fields();
  const auto thinker = top.optional_object("thinker_config");
  return model::read_vision((thinker ? *thinker : top).object("vision_config"), files);
}

// Returns how the names of the tower's tensors begin in these files.
std::string prefix_in(const hf::WeightFiles& files, const TowerFiles& known) {
  for (const char* candidate : known.prefixes)
    if (files.contains(std::string(candidate) + "patch_embed.proj.weight")) return candidate;
  return "";
}

class GoldenVisionTower : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenVisionTower, rows_of_images_and_videos) {
  const TowerFiles* known = find_files(golden_model_type(GetParam()));  // skips if there is no folder
  ASSERT_NE(known, nullptr);
  const std::filesystem::path folder = golden_dir() / "hf" / GetParam();
  const nn::VisionShape shape = read_shape(folder / "config.json", known->files);
  const hf::SafetensorsFile golden(folder / "golden.safetensors");
  run_ranks(1, [&](const Rank& r) {
    nn::ParameterSet set(at::kFloat, at::kCPU);
    const nn::VisionTower tower(nn::ParameterScope(set).child("vision"), shape, {.group = r.world.world()});
    const hf::WeightFiles files(folder);
    const std::string prefix = prefix_in(files, *known);
    load_tower(set, model::vision_rules(shape, known->files, prefix), prefix, files);
    int compared = 0;
    for (const std::string batch : {"", "mixed."})
      for (const std::string medium : {"image", "video"}) {
        if (!golden.find(batch + medium + "_embeds")) continue;
        SCOPED_TRACE(batch + medium);
        const at::Tensor pixels = golden.tensor(batch + "pixel_values" + (medium == "video" ? "_videos" : ""));
        const auto grids = nn::image_grids(golden.tensor(batch + medium + "_grid_thw"), shape.merge);
        const nn::VisionRows out = tower.forward(pixels, grids);
        expect_close(out.rows, golden.tensor(batch + medium + "_embeds"), "rows");
        for (size_t level = 0; level < out.deepstack.size(); ++level)
          expect_close(out.deepstack[level], golden.tensor(batch + medium + "_deepstack." + std::to_string(level)),
                       "deepstack rows " + std::to_string(level));
        ++compared;
      }
    EXPECT_GT(compared, 0);
  });
}

// Both spellings of config.json describe the same tower.
TEST_P(GoldenVisionTower, classic_config) {
  const TowerFiles* known = find_files(golden_model_type(GetParam()));
  const std::filesystem::path folder = golden_dir() / "hf" / GetParam(), classic = folder / "config_classic.json";
  if (!std::filesystem::exists(classic)) return;
  EXPECT_EQ(read_shape(folder / "config.json", known->files), read_shape(classic, known->files));
}

INSTANTIATE_TEST_SUITE_P(hf, GoldenVisionTower, ::testing::ValuesIn(golden_or_none(golden_towers())),
                         golden_test_name<::testing::TestParamInfo<std::string>>);

nn::VisionShape read_text(const std::string& text, model::VisionFiles files) {
  return model::read_vision(io::parse_json_file(text, "config.json").fields(), files);
}

// The vision_config of published files.
TEST(ReadVision, PublishedFiles) {
  const nn::VisionShape two = read_text(R"({"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16,
      "in_chans": 3, "hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14,
      "temporal_patch_size": 2})",
                                        model::VisionFiles::kQwen2);
  EXPECT_EQ(two.width, 1280);
  EXPECT_EQ(two.out_width, 3584);
  EXPECT_EQ(two.mlp_width, 5120);
  EXPECT_EQ(two.head_dim(), 80);
  EXPECT_EQ(two.patch_pixels(), 1176);
  EXPECT_EQ(two.activation, ops::Activation::kQuickGelu);
  const nn::VisionShape windows = read_text(R"({"depth": 32, "hidden_act": "silu", "hidden_size": 1280,
      "intermediate_size": 3420, "num_heads": 16, "in_chans": 3, "out_hidden_size": 2048, "patch_size": 14,
      "spatial_merge_size": 2, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2,
      "temporal_patch_size": 2})",
                                            model::VisionFiles::kQwen2_5);
  EXPECT_EQ(windows.norm, ops::NormKind::kRms);
  EXPECT_TRUE(windows.gated_mlp);
  EXPECT_EQ(windows.window_side(), 4);
  EXPECT_EQ(windows.full_blocks, (std::vector<int64_t>{7, 15, 23, 31}));
  const nn::VisionShape three = read_text(R"({"deepstack_visual_indexes": [8, 16, 24], "depth": 27,
      "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1152, "in_channels": 3, "initializer_range": 0.02,
      "intermediate_size": 4304, "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 4096,
      "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2})",
                                          model::VisionFiles::kQwen3);
  EXPECT_EQ(three.head_dim(), 72);
  EXPECT_EQ(three.position_side(), 48);
  EXPECT_EQ(three.deepstack_blocks, (std::vector<int64_t>{8, 16, 24}));
  EXPECT_TRUE(three.patch_bias);
}

TEST(ReadVision, ProblemsNameTheField) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      read_text(text, model::VisionFiles::kQwen3);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  expect_contains(message(R"({"depth": 2})"), "num_heads");
  expect_contains(message(R"({"depth": 2, "hidden_act": "silu", "hidden_size": 16, "intermediate_size": 8,
      "num_heads": 2, "num_position_embeddings": 15, "out_hidden_size": 8, "patch_size": 4})"),
                  "15 learned positions");
}

}  // namespace
}  // namespace megalith::testing
