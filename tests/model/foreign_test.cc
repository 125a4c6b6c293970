// Checkpoints of Megatron-Core and torch.distributed.checkpoint become the folders that they were made of, bit for bit
// (tests/data/foreign/make_foreign.py, which also compares the logits of Megatron-Core's models with transformers').
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/hf/foreign/pickle_reader.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/hf/weight_files.h"
#include "megalith/model/families/family.h"
#include "megalith/model/foreign/convert_foreign.h"
#include "megalith/model/foreign/foreign_optimizer.h"
#include "megalith/model/foreign/megatron_dcp.h"
#include "megalith/model/foreign/megatron_model.h"
#include "megalith/model/foreign/megatron_names.h"
#include "megalith/model/foreign/megatron_ranks.h"
#include "megalith/model/virtual_models.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/json_file.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kData = "tests/data/foreign";

void expect_weights_of(const fs::path& actual, const fs::path& expected) {
  const hf::WeightFiles a(actual), b(expected);
  ASSERT_EQ(a.names(), b.names());
  for (const std::string& name : a.names()) expect_identical(a.tensor(name), b.tensor(name), name);
}

// A checkpoint, and the folder of the model in it.
struct Case {
  std::string checkpoint, model;
};

class ForeignCheckpoint : public ::testing::TestWithParam<Case> {};

TEST_P(ForeignCheckpoint, BecomesTheModelItWasMadeOf) {
  const TempFolder temp;
  const fs::path model = kData / GetParam().model;
  const auto report = model::convert_foreign_checkpoint(kData / GetParam().checkpoint, temp / "out", {.config = model});
  expect_weights_of(temp / "out", model);
  EXPECT_EQ(report.tensors, std::ssize(hf::WeightFiles(model).names()));
  EXPECT_EQ(json_file(temp / "out/config.json").at("model_type"), json_file(model / "config.json").at("model_type"));
}

INSTANTIATE_TEST_SUITE_P(All, ForeignCheckpoint,
                         ::testing::Values(Case{"qwen2_dcp", "qwen2"}, Case{"qwen2_torch_dist", "qwen2"},
                                           Case{"qwen2_ranks", "qwen2"}, Case{"qwen3_moe_torch_dist", "qwen3_moe"},
                                           Case{"qwen3_moe_ranks", "qwen3_moe"}, Case{"qwen2_vpp_torch_dist", "qwen2"},
                                           Case{"qwen2_vpp_ranks", "qwen2"},
                                           Case{"deepseek_v3_torch_dist", "deepseek_v3"},
                                           Case{"deepseek_v3_ranks", "deepseek_v3"}),
                         [](const auto& test) { return test.param.checkpoint; });

TEST(ForeignCheckpoints, AnotherFormatIsWritten) {
  const TempFolder temp;
  model::convert_foreign_checkpoint(kData / "qwen2_ranks", temp / "out",
                                    {.config = kData / "qwen2", .dtype = at::kBFloat16, .max_shard_bytes = 10'000});
  const hf::WeightFiles made(temp / "out"), original(kData / "qwen2");
  EXPECT_TRUE(fs::exists(temp / "out/model.safetensors.index.json"));
  for (const std::string& name : original.names())
    expect_identical(made.tensor(name), original.tensor(name).to(at::kBFloat16), name);
  EXPECT_EQ(json_file(temp / "out/config.json").at("dtype"), "bfloat16");
}

// Both forms of the same model, under the names of Megatron-Core.
TEST(MegatronModels, PartsArePutTogether) {
  const hf::DcpFolder folder(kData / "qwen2_torch_dist");
  ASSERT_TRUE(model::has_megatron_names(folder));
  EXPECT_FALSE(model::has_megatron_names(hf::DcpFolder(kData / "qwen2_dcp")));
  ASSERT_TRUE(model::is_megatron_rank_folder(kData / "qwen2_ranks/iter_0000003"));
  const model::MegatronDcp stacked(folder);
  const model::MegatronRanks ranks(kData / "qwen2_ranks/iter_0000003");
  const hf::WeightFiles original(kData / "qwen2");
  const std::string block = "model.layers.3.mlp.", name = "decoder.layers.3.mlp.linear_fc1.weight";
  const at::Tensor expected =
      at::cat({original.tensor(block + "gate_proj.weight"), original.tensor(block + "up_proj.weight")});
  for (const model::MegatronModel* each : std::initializer_list<const model::MegatronModel*>{&stacked, &ranks}) {
    ASSERT_TRUE(each->has(name));
    EXPECT_FALSE(each->has("decoder.layers.4.mlp.linear_fc1.weight"));
    EXPECT_EQ(each->dtype(name), at::kFloat);
    EXPECT_EQ(each->problem(name, {48, 16}, 2), "");
    expect_contains(each->problem(name, {50, 16}, 2), name);
    expect_identical(each->whole(name, {48, 16}, 2), expected, name);
    const model::MegatronSource up =
        model::megatron_source(*each, model::read_model_config(kData / "qwen2"), {"layers.3.mlp.up.weight", {24, 16}});
    EXPECT_EQ(up.name, name);
    expect_identical(up.take(expected), original.tensor(block + "up_proj.weight"), "up");
  }
  EXPECT_EQ(ranks.optimizer_tensors(), 4);
  EXPECT_EQ(stacked.optimizer_tensors(), 0);
}

// ---- The state of AdamW ----

std::map<std::string, at::Tensor> optimizer_in(const fs::path& folder) {
  const hf::SafetensorsFile file(folder / "optimizer.safetensors");
  std::map<std::string, at::Tensor> tensors;
  for (const hf::TensorInfo& info : file.tensors()) tensors[info.name] = file.tensor(info.name);
  return tensors;
}

// torch and Megatron-Core have trained the same model on the same texts.
TEST(ForeignOptimizers, TwoProgramsGiveTheSameState) {
  const TempFolder temp;
  std::map<std::string, at::Tensor> states[2];
  for (const int i : {0, 1}) {
    const std::string name = i == 0 ? "qwen2_adam_fsdp" : "qwen2_adam_torch_dist";
    const auto report = model::convert_foreign_checkpoint(kData / name, temp / name, {.config = kData / "qwen2"});
    EXPECT_EQ(report.step, 2) << name;
    states[i] = optimizer_in(temp / name);
  }
  const auto trained = std::ranges::count_if(model::global_tensors(model::read_model_config(kData / "qwen2")),
                                             [](const hf::GlobalTensor& tensor) { return !tensor.buffer; });
  ASSERT_EQ(std::ssize(states[0]), 2 * trained);
  ASSERT_EQ(states[1].size(), states[0].size());
  for (const auto& [name, state] : states[0]) {
    EXPECT_GT(state.abs().max().item<float>(), 0) << name;
    expect_close(states[1].at(name), state, name, 1e-5);
  }
}

// Bit for bit what the programs have stored, cut into our tensors.
TEST(ForeignOptimizers, AreCopied) {
  const TempFolder temp;
  for (const char* name : {"qwen2_adam_fsdp", "qwen2_adam_torch_dist"})
    model::convert_foreign_checkpoint(kData / name, temp / name, {.config = kData / "qwen2"});
  const auto torch = optimizer_in(temp / "qwen2_adam_fsdp"), megatron = optimizer_in(temp / "qwen2_adam_torch_dist");
  const hf::DcpFolder from_torch(kData / "qwen2_adam_fsdp"), from_megatron(kData / "qwen2_adam_torch_dist");
  expect_identical(torch.at("optimizer.exp_avg_sq.layers.1.mlp.down.weight"),
                   from_torch.read("optim.state.model.layers.1.mlp.down_proj.weight.exp_avg_sq"), "down");
  const at::Tensor fc1 = from_megatron.read("optimizer.state.exp_avg.decoder.layers.mlp.linear_fc1.weight")[1];
  expect_identical(megatron.at("optimizer.exp_avg.layers.1.mlp.gate.weight"), fc1.narrow(0, 0, 24), "gate");
  expect_identical(megatron.at("optimizer.exp_avg.layers.1.mlp.up.weight"), fc1.narrow(0, 24, 24), "up");
}

// Weights in bf16 have main parameters, which round to them.
TEST(ForeignOptimizers, MainParametersAreRead) {
  const TempFolder temp;
  const auto report =
      model::convert_foreign_checkpoint(kData / "qwen2_adam_reshardable", temp / "out", {.config = kData / "qwen2"});
  EXPECT_EQ(report.step, 2);
  const auto state = optimizer_in(temp / "out");
  const hf::WeightFiles weights(temp / "out");
  const at::Tensor main = state.at("optimizer.main.layers.2.attention.o.weight");
  EXPECT_FALSE(main.equal(main.to(at::kBFloat16).to(at::kFloat)));
  expect_identical(main.to(at::kBFloat16), weights.tensor("model.layers.2.self_attn.o_proj.weight"), "o");
  expect_identical(state.at("optimizer.main.head.weight").to(at::kBFloat16), weights.tensor("lm_head.weight"), "head");
  EXPECT_TRUE(state.contains("optimizer.exp_avg.embedding.weight"));
}

TEST(ForeignOptimizers, OtherFormsAreNamed) {
  const model::ModelConfig config = model::read_model_config(kData / "qwen2");
  const auto mapping =
      std::make_shared<const hf::TensorMapping>(model::name_map(config), model::global_tensors(config));
  const auto reason = [&](const std::string& name) {
    return model::find_foreign_optimizer(std::make_shared<const hf::DcpFolder>(kData / name), config, mapping, false)
        .left_out_as;
  };
  expect_contains(reason("qwen2_adam_flat"), "--dist-ckpt-optim-fully-reshardable");
  expect_contains(reason("qwen2_dcp"), "exp_avg");
  expect_contains(reason("qwen2_torch_dist"), "exp_avg");
  EXPECT_EQ(reason("qwen2_adam_fsdp"), "");
  // A state that lacks a tensor is not used in part.
  nlohmann::json fields = json_file(kData / "qwen2" / "config.json");
  fields["num_hidden_layers"] = 5;
  fields.erase("layer_types");  // one per layer
  const TempFolder folder;
  std::ofstream(folder / "config.json") << fields;
  const model::ModelConfig deeper = model::read_model_config(folder.path());
  const auto other = std::make_shared<const hf::TensorMapping>(model::name_map(deeper), model::global_tensors(deeper));
  const auto found = model::find_foreign_optimizer(
      std::make_shared<const hf::DcpFolder>(kData / "qwen2_adam_torch_dist"), deeper, other, false);
  expect_contains(found.left_out_as, "decoder.layers.4.");
  expect_contains(found.left_out_as, "is missing");
}

TEST(ForeignCheckpoints, AreFound) {
  const auto found = [](const fs::path& path) {
    return model::find_foreign_checkpoint(path).value_or("none").string();
  };
  EXPECT_EQ(found(kData / "qwen2_ranks"), (kData / "qwen2_ranks/iter_0000003").string());
  EXPECT_EQ(found(kData / "qwen2_dcp"), (kData / "qwen2_dcp").string());
  EXPECT_EQ(found(kData / "qwen2"), "none");
  EXPECT_EQ(found(kData / "absent"), "none");
}

TEST(ForeignCheckpoints, AConfigIsNeeded) {
  const TempFolder temp;
  expect_error<ConfigError>([&] { model::convert_foreign_checkpoint(kData / "qwen2_ranks", temp / "out", {}); },
                            {"config_path", "config.json"});
  EXPECT_FALSE(fs::exists(temp / "out"));
}

// Converts with a changed config.json and returns the error.
std::string error_with(const std::string& checkpoint, const fs::path& temp, const std::function<void(json&)>& change) {
  json config = json_file(kData / "qwen2/config.json");
  change(config);
  fs::create_directories(temp / "config");
  std::ofstream(temp / "config/config.json") << config.dump();
  const std::string error = error_of<DataError>(
      [&] { model::convert_foreign_checkpoint(kData / checkpoint, temp / "out", {.config = temp / "config"}); });
  EXPECT_FALSE(fs::exists(temp / "out"));
  return error;
}

TEST(ForeignCheckpoints, AnotherModelIsNamed) {
  const TempFolder temp;
  for (const char* checkpoint : {"qwen2_torch_dist", "qwen2_ranks"}) {
    SCOPED_TRACE(checkpoint);
    const auto error = [&](const std::function<void(json&)>& change) {
      return error_with(checkpoint, temp.path(), change);
    };
    const auto layers = [](int count) {
      return [count](json& config) {
        config["num_hidden_layers"] = count;
        config["layer_types"] = std::vector<std::string>(static_cast<size_t>(count), "full_attention");
      };
    };
    expect_contains(error(layers(5)), "decoder.layers.4.self_attention.linear_qkv.weight");
    expect_contains(error(layers(5)), "missing");
    expect_contains(error(layers(3)), "unexpected");
    expect_contains(error([](json& config) { config["intermediate_size"] = 32; }),
                    "decoder.layers.0.mlp.linear_fc1.weight");
  }
  expect_contains(error_with("qwen2_dcp", temp.path(), [](json& config) { config["vocab_size"] = 51; }),
                  "of another shape");
}

TEST(ForeignCheckpoints, AMissingRankIsNamed) {
  const TempFolder temp;
  fs::copy(kData / "qwen2_ranks", temp / "ranks", fs::copy_options::recursive);
  fs::remove_all(temp / "ranks/iter_0000003/mp_rank_01_001");
  expect_error<DataError>(
      [&] { model::convert_foreign_checkpoint(temp / "ranks", temp / "out", {.config = kData / "qwen2"}); },
      {"tensor-parallel rank 1 of pipeline rank 1"});
  EXPECT_FALSE(fs::exists(temp / "out"));
}

// Norms kept as w - 1 have the names and shapes of others.
TEST(MegatronModels, ArgumentsThatAreNotReadAreFound) {
  const auto found = [](const std::string& value) {
    const std::string name = "apply_layernorm_1p";
    const std::string program = std::string("\x80\x04}\x8c\x04", 5) + "args}\x8c" +
                                std::string(1, static_cast<char>(name.size())) + name + value + "ss.";
    return model::find_unread_arguments(hf::read_pickle(program, "x.pkl")->root());
  };
  EXPECT_EQ(found("\x88"), std::vector<std::string>{"apply_layernorm_1p"});
  EXPECT_TRUE(found("\x89").empty());
}

TEST(ForeignCheckpoints, SettingsOfMcoreAdapterThatAreNotReadAreNamed) {
  const TempFolder temp;
  fs::copy(kData / "qwen3_moe_ranks", temp / "ranks", fs::copy_options::recursive);
  const auto convert = [&](const char* settings) {
    std::ofstream(temp / "ranks/mca_config.json") << settings;
    model::convert_foreign_checkpoint(temp / "ranks", temp / "out", {.config = kData / "qwen3_moe"});
  };
  expect_error<ConfigError>([&] { convert(R"({"layernorm_zero_centered_gamma": true, "num_layers": 2})"); },
                            {"layernorm_zero_centered_gamma", "the program that wrote it"});
  EXPECT_FALSE(fs::exists(temp / "out"));
  convert(R"({"layernorm_zero_centered_gamma": false, "rotary_interleaved": null})");
  expect_weights_of(temp / "out", kData / "qwen3_moe");
}

}  // namespace
}  // namespace megalith::testing
