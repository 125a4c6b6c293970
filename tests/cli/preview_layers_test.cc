#include "megalith/layout/pipeline_layout.h"
#include "tests/cli/preview_support.h"
#include "tests/layout/golden_shape.h"
#include "tests/support/golden.h"

namespace megalith::cli {
namespace {

using layout::golden_inputs;
using layout::golden_list;
using nlohmann::json;

json split_file() { return testing::golden_json("parallel/layer_split.json"); }

std::string layout_text(const json& layout) {
  if (layout.is_string()) return layout.get<std::string>();
  return layout::PipelineLayout::from_names(layout.get<std::vector<std::vector<std::string>>>()).text();
}

std::vector<std::string> layer_words(const json& c) {
  const std::vector<std::pair<const char*, const char*>> options{{"num_layers", "num_layers"},
                                                                 {"pp", "pp"},
                                                                 {"vpp", "vpp"},
                                                                 {"first", "decoder_first_pipeline_num_layers"},
                                                                 {"last", "decoder_last_pipeline_num_layers"},
                                                                 {"mtp", "mtp_num_layers"}};
  std::vector<std::string> words{"layers", "--json"};
  for (const auto& [key, option] : options)
    if (c.contains(key) && !c.at(key).is_null()) words.push_back(std::string(option) + "=" + c.at(key).dump());
  if (c.value("account_embedding", false)) words.emplace_back("--account_for_embedding_in_pipeline_split");
  if (c.value("account_loss", false)) words.emplace_back("--account_for_loss_in_pipeline_split");
  if (c.contains("layout") && !c.at("layout").is_null())
    words.insert(words.end(), {"--pipeline_model_parallel_layout", layout_text(c.at("layout"))});
  return words;
}

// vpp 1 means no virtual stages for every command, so the one chunk is not named.
json without_single_chunk(json c) {
  if (c.value("resolved_vpp", json()) == 1) c["resolved_vpp"] = nullptr;
  if (c.value("vpp", json()) == 1) c.erase("vpp");
  return c;
}

TEST(GoldenPreviewLayers, layer_split_json_cases) {
  for (const json& c : golden_list(split_file(), "cases")) {
    SCOPED_TRACE(golden_inputs(c));
    const Answer answer = preview(layer_words(c));
    ASSERT_EQ(answer.exit_code, kDone) << answer.error;
    const json shown = answer.json();
    const json expected = without_single_chunk(c);
    for (const auto& [key, golden] : expected.items()) {
      ASSERT_TRUE(shown.contains(key)) << key;
      EXPECT_EQ(shown.at(key), key == "layout" ? json(layout_text(golden)) : golden) << key;
    }
    EXPECT_EQ(answer.err, "");
  }
}

// Inputs that the reference refuses are refused here too, or balanced with a note that says how to write them.
TEST(GoldenPreviewLayers, layer_split_json_invalid) {
  for (const json& c : golden_list(split_file(), "invalid")) {
    SCOPED_TRACE(c.dump());
    const Answer answer = preview(layer_words(c));
    const bool only_upstream = contains(c.value("reason", ""), "upstream limitation");
    EXPECT_TRUE(!answer.error.empty() || only_upstream || contains(answer.err, "--pipeline_model_parallel_layout"))
        << answer.out << answer.err;
  }
}

TEST(PreviewLayers, table_in_pipeline_order) {
  const std::string out = preview("layers --num_layers 32 --pp 4 --vpp 2 --mtp_num_layers 1").out;
  EXPECT_TRUE(contains(out, "    1        1      0        4-7      4\n")) << out;
  EXPECT_TRUE(contains(out, "    4        0      1      16-19      4\n")) << out;
  EXPECT_TRUE(contains(out, "    7        3      1      28-31      4  mtp 0, loss\n")) << out;
  EXPECT_TRUE(contains(out, "embedding")) << out;
  EXPECT_TRUE(contains(out, "layers of each rank: 8 8 8 8")) << out;
}

TEST(PreviewLayers, uneven_split_is_computed_and_can_be_pasted) {
  const Answer uneven = preview("layers --num_layers 10 --pp 4 --json");
  ASSERT_EQ(uneven.exit_code, kDone) << uneven.error;
  const std::string as_layout = uneven.json().at("as_layout");
  EXPECT_TRUE(contains(uneven.err, "--pipeline_model_parallel_layout '" + as_layout + "'")) << uneven.err;
  const Answer pasted = preview("layers --num_layers 10 --pp 4 --json --pipeline_model_parallel_layout " + as_layout);
  ASSERT_EQ(pasted.exit_code, kDone) << pasted.error;
  EXPECT_EQ(pasted.err, "");
  for (size_t i = 0; i < 4; ++i)
    EXPECT_EQ(pasted.json().at("stages")[i].at("layers"), uneven.json().at("stages")[i].at("layers"));
}

TEST(PreviewLayers, layers_per_virtual_stage_give_the_virtual_size) {
  const json shown = preview("layers --num-layers 16 --pp 4 --num-layers-per-virtual-pipeline-stage 2 --json").json();
  EXPECT_EQ(shown.at("resolved_vpp"), 2);
  EXPECT_EQ(shown.at("stages").size(), 8);
}

TEST(PreviewLayers, errors_name_the_setting) {
  EXPECT_TRUE(contains(preview("layers --pp 4").error, "num_layers"));
  EXPECT_TRUE(
      contains(preview("layers --num_layers 8 --pp 2 --pipeline_model_parallel_layout Ettt|ttL").error, "layout"));
  EXPECT_FALSE(preview("layers --num_layers 8 --pp 2 --vpp 2 --num_layers_per_virtual_pipeline_stage 2").error.empty());
}

}  // namespace
}  // namespace megalith::cli
