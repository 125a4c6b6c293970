// config.json of every family: what is read, and what is refused with the field named.
#include "megalith/model/families/family.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "fuzz/entries.h"
#include "megalith/base/error.h"
#include "tests/model/model_support.h"
#include "tests/support/expect.h"
#include "tests/support/fuzz_corpus.h"

namespace megalith::testing {
namespace {

using nlohmann::json;

json llama() { return golden_json("hf/llama/config.json"); }

model::ModelConfig read(const json& config) {
  return model::read_model_config(io::parse_json_file(config.dump(), "config.json"));
}

std::string refusal_of(const json& config) {
  try {
    read(config);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Family, UnknownTypesAreNamedWithTheSupportedOnes) {
  json config = llama();
  config["model_type"] = "mamba";
  const std::string message = refusal_of(config);
  expect_contains(message, "\"mamba\"");
  for (const char* name : {"gpt2", "llama", "mistral", "qwen2", "qwen3", "seed_oss"}) expect_contains(message, name);
  config.erase("model_type");
  expect_contains(refusal_of(config), "model_type");
}

TEST(Family, WrongFieldsAreNamed) {
  const std::vector<std::pair<const char*, json>> bad{
      {"hidden_size", "64"},          {"num_hidden_layers", -1},        {"num_attention_heads", 1.5},
      {"vocab_size", nullptr},        {"hidden_act", "snake"},          {"rms_norm_eps", 0},
      {"tie_word_embeddings", "yes"}, {"max_position_embeddings", "x"}, {"dtype", "int8"},
      {"initializer_range", -0.1}};
  for (const auto& [key, value] : bad) {
    json config = llama();
    config[key] = value;
    const std::string message = refusal_of(config);
    expect_contains(message, "config.json");
    expect_contains(message, fmt::format("\"{}\"", key));
  }
}

TEST(Family, HeadsThatDoNotShareAreRefused) {
  json config = llama();
  config["num_key_value_heads"] = 3;
  expect_contains(refusal_of(config), "8 attention heads cannot share 3 key/value heads");
}

TEST(Family, RopeInBothSpellings) {
  json config = llama();
  config.erase("rope_parameters");
  config["rope_theta"] = 5000.0;
  EXPECT_EQ(read(config).rope->theta, 5000);
  EXPECT_EQ(read(config).rope->scaling, ops::RopeScaling::kNone);
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(read(config).rope->scaling, ops::RopeScaling::kLinear);
  EXPECT_EQ(read(config).rope->factor, 2);
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};
  EXPECT_EQ(read(config).rope->scaling, ops::RopeScaling::kYarn);
  EXPECT_EQ(read(config).rope->original_positions, 128);
  config["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 2.0}};
  EXPECT_EQ(read(config).rope->original_positions, 512);  // max_position_embeddings
  config["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(read(config).rope->rotary_dim, 4);
  config["rope_scaling"] = {{"rope_type", "longrope"}};
  expect_contains(refusal_of(config), "rope_type");
  config["rope_scaling"] = {{"rope_type", "linear"}};
  expect_contains(refusal_of(config), "rope_scaling.factor");
}

TEST(Family, WindowsOfLayers) {
  json config = golden_json("hf/qwen2/config.json");
  EXPECT_EQ(read(config).window(0), 0);
  config["sliding_window"] = 16;
  config["layer_types"] = {"full_attention", "sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(read(config).windows, (std::vector<int64_t>{0, 16, 0, 16}));
  config["layer_types"] = {"full_attention"};
  expect_contains(refusal_of(config), "layer_types");
  config["layer_types"] = {"full_attention", "linear_attention", "full_attention", "full_attention"};
  expect_contains(refusal_of(config), "layer_types");
  config.erase("layer_types");
  config["use_sliding_window"] = true;
  config["max_window_layers"] = 3;
  EXPECT_EQ(read(config).windows, (std::vector<int64_t>{0, 0, 0, 16}));
}

// transformers multiplies for sigmoid scores in fp32 and for the others in the type of the model.
TEST(Family, RoutersWithSigmoidScoresMultiplyInFp32) {
  for (const char* family : {"deepseek_v3", "glm4_moe"})
    EXPECT_EQ(model::read_model_config(golden_folder(family)).moe->router.dtype, at::kFloat) << family;
  for (const char* family : {"qwen2_moe", "qwen3_moe", "mixtral"})
    EXPECT_EQ(model::read_model_config(golden_folder(family)).moe->router.dtype, std::nullopt) << family;
}

TEST(Family, QuantisedWeightsAreRefused) {
  json config = llama();
  config["quantization_config"] = {{"quant_method", "fp8"}};
  expect_contains(refusal_of(config), "quantization_config");
}

TEST(Family, ForeignKeysSurviveAnExport) {
  json config = llama();
  config["my_own_key"] = {{"a", 1}};
  config["vocab_size"] = 512;
  const auto again = json::parse(model::config_json(read(config), at::kFloat));
  EXPECT_EQ(again, config);
}

TEST(Family, AnyBytesAreReadOrRefused) { run_fuzz_entry("model_config", fuzz::model_config); }

}  // namespace
}  // namespace megalith::testing
