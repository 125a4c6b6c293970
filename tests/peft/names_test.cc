#include "megalith/peft/names.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/hf/name_map.h"
#include "megalith/peft/targets.h"
#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

using nn::WeightUse;
using peft::AdapterConfig;

const hf::NameMap kNames{
    .rules = {
        {"model.embed.weight", {"embedding.weight"}},
        {"model.layers.{}.attn.c_attn.weight", {"layers.{}.attention.q.weight", "layers.{}.attention.k.weight"}, true},
        {"model.layers.{}.mlp.experts.{}.up.weight", {"layers.{}.mlp.experts.{}.up.weight"}},
        {"model.layers.{}.norm.weight", {"layers.{}.attention_norm.weight"}},
        {"lm_head.weight", {"head.weight"}}}};
const std::vector<peft::Weight> kWeights{{"embedding.weight", WeightUse::kLookup},
                                         {"layers.0.attention.q.weight", WeightUse::kColumn},
                                         {"layers.0.attention.k.weight", WeightUse::kColumn},
                                         {"layers.0.mlp.experts.1.up.weight", WeightUse::kGroupedColumn},
                                         {"layers.0.attention_norm.weight", WeightUse::kOther},
                                         {"head.weight", WeightUse::kColumn}};

AdapterConfig targets(std::vector<std::string> names, std::vector<std::string> saved = {}) {
  AdapterConfig config;
  config.target_modules = std::move(names);
  config.modules_to_save = std::move(saved);
  return config;
}

TEST(AdapterNames, OfModules) {
  EXPECT_EQ(peft::module_of(kNames, "layers.7.attention.k.weight"), "model.layers.7.attn.c_attn");
  EXPECT_EQ(peft::module_of(kNames, "no.such.weight"), "");
  EXPECT_EQ(peft::a_name("layers.7.attention.k.weight"), "layers.7.attention.k.lora_a");
  EXPECT_TRUE(peft::is_target("model.layers.7.attn.c_attn", targets({"c_attn"})));
  EXPECT_TRUE(peft::is_target("model.layers.7.attn.c_attn", targets({"7.attn.c_attn"})));
  EXPECT_TRUE(peft::is_target("lm_head", targets({"lm_head"})));
  EXPECT_FALSE(peft::is_target("model.layers.7.attn.c_attn", targets({"attn"})));
  EXPECT_FALSE(peft::is_target("c_attn", targets({"model.c_attn"})));
}

TEST(AdapterNames, OfFiles) {
  const hf::TensorMapping mapping(peft::adapter_names(kNames), {{"layers.0.attention.q.lora_a", {4, 8}},
                                                                {"layers.0.attention.q.lora_b", {6, 4}},
                                                                {"layers.0.attention.k.lora_b", {2, 4}},
                                                                {"layers.0.attention.q.lora_m", {6}},
                                                                {"layers.0.attention.k.lora_m", {2}},
                                                                {"embedding.lora_a", {10, 4}},
                                                                {"embedding.lora_b", {8, 4}},
                                                                {"head.weight", {10, 8}}});
  std::vector<std::string> found;
  for (const hf::FileTensor& file : mapping.files())
    found.push_back(fmt::format("{} [{}]", file.name, fmt::join(file.shape, ", ")));
  EXPECT_EQ(found, (std::vector<std::string>{"base_model.model.model.layers.0.attn.c_attn.lora_A.weight [4, 8]",
                                             "base_model.model.model.layers.0.attn.c_attn.lora_B.weight [8, 4]",
                                             "base_model.model.model.layers.0.attn.c_attn.lora_magnitude_vector [8]",
                                             "base_model.model.model.embed.lora_embedding_A [4, 10]",
                                             "base_model.model.model.embed.lora_embedding_B [8, 4]",
                                             "base_model.model.lm_head.weight [10, 8]"}));
}

// peft keeps the module of an update as its base_layer.
TEST(AdapterNames, OfBiases) {
  hf::NameMap names = kNames;
  names.rules.push_back({"model.layers.{}.attn.c_attn.bias", {"layers.{}.attention.q.bias"}});
  names.rules.push_back({"model.layers.{}.norm.bias", {"layers.{}.attention_norm.bias"}});
  AdapterConfig config = targets({"0.attn.c_attn"});
  const auto trained = [&] {
    std::vector<std::string> found;
    for (const char* ours : {"layers.0.attention.q.bias", "layers.1.attention.q.bias", "layers.0.attention_norm.bias",
                             "layers.0.attention_norm.weight"})
      if (peft::trains_whole(names, ours, config)) found.emplace_back(ours);
    return found;
  };
  EXPECT_TRUE(trained().empty());
  config.biases = peft::TrainedBiases::kTargets;
  EXPECT_EQ(trained(), std::vector<std::string>{"layers.0.attention.q.bias"});
  config.biases = peft::TrainedBiases::kAll;
  EXPECT_EQ(trained().size(), 3U);
  EXPECT_EQ(peft::written_name(names, "base_model.model.model.layers.0.attn.c_attn.bias", config),
            "base_model.model.model.layers.0.attn.c_attn.base_layer.bias");
  for (const char* kept :
       {"base_model.model.model.layers.1.attn.c_attn.bias", "base_model.model.model.layers.0.norm.bias",
        "base_model.model.model.layers.0.attn.c_attn.lora_A.weight"})
    EXPECT_EQ(peft::written_name(names, kept, config), kept);
}

TEST(AdapterNames, AllIsEveryLinearLayerButTheHead) {
  EXPECT_EQ(peft::with_targets(targets({"all"}), kNames, kWeights).target_modules,
            (std::vector<std::string>{"c_attn", "up"}));
  EXPECT_EQ(peft::with_targets(targets({"all-linear", "lm_head"}), kNames, kWeights).target_modules,
            (std::vector<std::string>{"c_attn", "lm_head", "up"}));
}

TEST(AdapterNames, WhatDoesNotExistIsRefused) {
  const auto said = [](const AdapterConfig& config) -> std::string {
    try {
      peft::with_targets(config, kNames, kWeights);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "nothing is wrong";
  };
  expect_contains(said(targets({"c_atn"})), "did you mean c_attn");
  expect_contains(said(targets({"norm"})), "no linear layer norm");
  expect_contains(said(targets({"c_attn"}, {"nrm"})), "no module nrm; did you mean norm");
  EXPECT_EQ(said(targets({"c_attn"}, {"norm"})), "nothing is wrong");
  AdapterConfig none = targets({"c_attn"});
  none.rank = 0;
  expect_contains(said(none), "lora_rank is 0");
}

}  // namespace
}  // namespace megalith::testing
