#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/layout/launcher_vpp.h"
#include "megalith/layout/layer_split.h"
#include "tests/layout/golden_shape.h"
#include "tests/support/golden.h"

namespace megalith::layout {
namespace {

using nlohmann::json;

json split_file() { return testing::golden_json("parallel/layer_split.json"); }

SplitRequest request_of(const json& c) {
  SplitRequest r;
  r.num_layers = c.at("num_layers").get<int>();
  r.pp = c.value("pp", 1);
  r.vpp = optional_member<int>(c, "vpp");
  r.first_rank_layers = optional_member<int>(c, "first");
  r.last_rank_layers = optional_member<int>(c, "last");
  r.account_for_embedding = c.value("account_embedding", false);
  r.account_for_loss = c.value("account_loss", false);
  r.mtp_layers = optional_member<int>(c, "mtp").value_or(0);
  if (!c.contains("layout") || c.at("layout").is_null()) return r;
  r.layout = c.at("layout").is_string()
                 ? PipelineLayout::parse(c.at("layout").get<std::string>())
                 : PipelineLayout::from_names(c.at("layout").get<std::vector<std::vector<std::string>>>());
  return r;
}

// The file leaves out fields that are 0, also where 0 is the very thing that is refused.
SplitRequest invalid_request_of(const json& c) {
  SplitRequest r = request_of(c);
  const std::string reason = c.value("reason", "");
  if (reason == "the first stage would hold no layer" && !r.first_rank_layers) r.first_rank_layers = 0;
  if (reason == "the last stage would hold no layer" && !r.last_rank_layers) r.last_rank_layers = 0;
  return r;
}

json json_of(const Stage& stage, bool has_layout) {
  json j{
      {"pp_rank", stage.pp_rank}, {"vp_stage", stage.vp_stage}, {"offset", stage.offset}, {"layers", stage.layers()}};
  if (has_layout) j["types"] = stage.types;
  if (has_layout && !stage.mtp_layers.empty()) j["mtp_layers"] = stage.mtp_layers;
  return j;
}

TEST(GoldenLayerSplit, layer_split_json_cases) {
  for (const json& c : golden_list(split_file(), "cases")) {
    SCOPED_TRACE(golden_inputs(c));
    const LayerSplit split(request_of(c));
    EXPECT_EQ(split.vpp(), optional_member<int>(c, "resolved_vpp"));
    json stages = json::array();
    for (const Stage& stage : split.stages()) stages.push_back(json_of(stage, split.has_layout()));
    EXPECT_EQ(stages, c.at("stages"));
    if (c.contains("mtp_standalone")) {
      EXPECT_EQ(split.mtp_standalone(), c.at("mtp_standalone").get<bool>());
    }
  }
}

TEST(GoldenLayerSplit, layer_split_json_invalid) {
  for (const json& c : golden_list(split_file(), "invalid")) {
    SCOPED_TRACE(c.dump());
    // Refused by the reference alone: we compute it (README of the golden files, design.md §5).
    const bool only_upstream = c.value("reason", "").find("upstream limitation") != std::string::npos;
    if (only_upstream) {
      EXPECT_NO_THROW(LayerSplit{request_of(c)});
    } else {
      EXPECT_THROW(LayerSplit{invalid_request_of(c)}, ConfigError);
    }
  }
}

LauncherVppRequest launcher_request_of(const json& args) {
  LauncherVppRequest r;
  r.num_layers = args.at("num_layers").get<int>();
  r.pipeline_model_parallel_size = args.value("pipeline_model_parallel_size", 1);
  r.num_layers_per_virtual_pipeline_stage = optional_member<int>(args, "num_layers_per_virtual_pipeline_stage");
  r.num_virtual_stages_per_pipeline_rank = optional_member<int>(args, "num_virtual_stages_per_pipeline_rank");
  r.pipeline_model_parallel_layout = optional_member<std::string>(args, "pipeline_model_parallel_layout");
  r.decoder_first_pipeline_num_layers = optional_member<int>(args, "decoder_first_pipeline_num_layers");
  r.decoder_last_pipeline_num_layers = optional_member<int>(args, "decoder_last_pipeline_num_layers");
  r.account_for_embedding_in_pipeline_split = args.value("account_for_embedding_in_pipeline_split", false);
  r.account_for_loss_in_pipeline_split = args.value("account_for_loss_in_pipeline_split", false);
  r.overlap_p2p_comm = args.value("overlap_p2p_comm", true);
  return r;
}

TEST(GoldenLayerSplit, layer_split_json_launcher_vpp) {
  for (const json& c : golden_list(split_file(), "launcher_vpp")) {
    SCOPED_TRACE(c.dump());
    const LauncherVppRequest request = launcher_request_of(c.at("args"));
    if (c.contains("rejected")) {
      EXPECT_THROW(resolve_launcher_vpp(request), ConfigError);
      continue;
    }
    const LauncherVpp resolved = resolve_launcher_vpp(request);
    EXPECT_EQ(resolved.vpp, optional_member<int>(c, "vpp"));
    EXPECT_EQ(resolved.overlap_p2p_comm, c.at("overlap_p2p_comm").get<bool>());
  }
}

}  // namespace
}  // namespace megalith::layout
