#include "megalith/peft/adapter_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/io/file_io.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

using nlohmann::json;
using peft::AdapterConfig;

const json kPlain{{"peft_type", "LORA"},
                  {"r", 8},
                  {"lora_alpha", 16},
                  {"target_modules", {"q_proj", "v_proj"}},
                  {"base_model_name_or_path", "org/base"}};

AdapterConfig read(const json& content) {
  const TempFolder folder;
  io::write_text_file(folder / peft::kConfigName, content.dump());
  return peft::read_adapter_config(folder.path());
}

json with(const char* key, const json& value) {
  json changed = kPlain;
  changed[key] = value;
  return changed;
}

std::string refusal(const json& content) {
  try {
    read(content);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing is wrong";
}

TEST(AdapterConfig, IsReadAndWritten) {
  const AdapterConfig config = read(with("use_rslora", true));
  EXPECT_EQ(config.rank, 8);
  EXPECT_DOUBLE_EQ(config.scale(), 16 / std::sqrt(8.0));
  EXPECT_DOUBLE_EQ(read(kPlain).scale(), 2);
  EXPECT_EQ(config.target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_TRUE(config.modules_to_save.empty());
  EXPECT_EQ(read(with("target_modules", "all-linear")).target_modules, std::vector<std::string>{"all-linear"});
  json again = json::parse(peft::to_json(config));
  EXPECT_EQ(again.at("base_model_name_or_path"), "org/base");
  EXPECT_EQ(again.at("lora_alpha"), 16);
  EXPECT_EQ(again.at("use_rslora"), true);
  AdapterConfig fresh;
  fresh.target_modules = {"q_proj"};
  again = json::parse(peft::to_json(fresh));
  EXPECT_EQ(again.at("peft_type"), "LORA");
  EXPECT_EQ(again.at("task_type"), "CAUSAL_LM");
  EXPECT_TRUE(again.at("modules_to_save").is_null());
  EXPECT_EQ(read(again).rank, fresh.rank);
}

TEST(AdapterConfig, ReadsWhichBiasesAreTrained) {
  EXPECT_EQ(read(kPlain).biases, peft::TrainedBiases::kNone);
  EXPECT_EQ(read(with("bias", "lora_only")).biases, peft::TrainedBiases::kTargets);
  EXPECT_EQ(read(with("bias", "all")).biases, peft::TrainedBiases::kAll);
  EXPECT_EQ(json::parse(peft::to_json(read(with("bias", "all")))).at("bias"), "all");
}

TEST(AdapterConfig, ReadsWhetherItHasMagnitudes) {
  EXPECT_FALSE(read(kPlain).use_dora);
  EXPECT_TRUE(read(with("use_dora", true)).use_dora);
  EXPECT_EQ(json::parse(peft::to_json(read(with("use_dora", true)))).at("use_dora"), true);
  EXPECT_EQ(json::parse(peft::to_json(read(with("use_dora", false)))).at("use_dora"), false);
}

// Fields that select modules, and their ranks, go back into the file as they came.
TEST(AdapterConfig, KeepsPatterns) {
  json content = kPlain;
  content.update({{"target_modules", ".*[qv]_proj"},
                  {"exclude_modules", {"0.self_attn.q_proj"}},
                  {"rank_pattern", {{"q_proj", 4}, {"2.*v_proj", 2}}},
                  {"alpha_pattern", {{"v_proj", 1.5}}},
                  {"target_parameters", {"experts.down_proj"}},
                  {"layers_to_transform", 1},
                  {"layers_pattern", "layers"},
                  {"modules_to_save", nullptr},
                  {"lora_dropout", 0.0},
                  {"use_rslora", false},
                  {"inference_mode", true}});
  const AdapterConfig config = read(content);
  EXPECT_EQ(config.target_pattern->text(), ".*[qv]_proj");
  EXPECT_EQ(config.exclude_modules, std::vector<std::string>{"0.self_attn.q_proj"});
  EXPECT_EQ(config.layers_to_transform, std::vector<int64_t>{1});
  ASSERT_EQ(config.rank_pattern.size(), 2U);
  json again = json::parse(peft::to_json(config));
  EXPECT_EQ(again, content);
}

TEST(AdapterConfig, WhatIsNotSupportedIsNamed) {
  expect_contains(refusal(with("r", 0)), "\"r\" is 0");
  expect_contains(refusal(with("lora_alpha", "x")), "lora_alpha");
  expect_contains(refusal(with("peft_type", "IA3")), "peft_type is IA3");
  expect_contains(refusal(with("layer_replication", {{0, 1}})), "\"layer_replication\" is [[0,1]]");
  expect_contains(refusal(with("rank_pattern", {{"q_proj", 0}})), "q_proj");
  expect_contains(refusal(with("kasa_config", {{"beta", 1}})), "kasa_config");
  expect_contains(refusal(with("bias", "some")), "all, lora_only or none");
  expect_contains(refusal(with("target_modules", "(?P<x>q)_proj")), "is not understood");
  expect_contains(refusal(with("target_modules", nullptr)), "at least one module");
  expect_contains(refusal(with("lora_dropout", 1.0)), "below 1");
  EXPECT_EQ(refusal(with("rank_pattern", json::object())), "nothing is wrong");
  EXPECT_THROW(peft::read_adapter_config(TempFolder().path()), DataError);
}

}  // namespace
}  // namespace megalith::testing
