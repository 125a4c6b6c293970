// Checkpoints in the form of DeepSeek-V3's: read in every layout, written, and refused where they are of another kind.
#include "megalith/model/convert/fp8_blocks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/hf/block_scales.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/hf/weight_files.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/model/convert/convert.h"
#include "megalith/model/pretrained.h"
#include "tests/model/model_support.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/json_file.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Tensors = std::map<std::string, at::Tensor>;

void write_folder(const fs::path& folder, const json& config, const Tensors& tensors) {
  fs::create_directories(folder);
  std::ofstream(folder / "config.json") << config.dump(2);
  std::vector<hf::WeightSpec> specs;
  for (const auto& [name, tensor] : tensors)
    specs.push_back({name, hf::dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  hf::WeightWriter writer(folder, specs);
  writer.create_files();
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  writer.sync();
}

// A golden model with its linear layers in blocks of an odd size, and the same values in fp32.
void write_both(const std::string& name, const hf::ScaleBlock& block, const fs::path& in_blocks,
                const fs::path& plain) {
  const model::ModelConfig config = model::read_model_config(golden_folder(name));
  const hf::TensorMapping mapping(model::name_map(config), model::global_tensors(config));
  const auto in_fp8 = model::fp8_block_names(config, model::global_tensors(config), mapping);
  const hf::WeightFiles files(golden_folder(name));
  Tensors scaled, values;
  for (const std::string& each : files.names()) {
    const at::Tensor tensor = files.tensor(each).contiguous();
    scaled[each] = values[each] = tensor;
    if (!in_fp8.contains(each)) continue;
    const hf::BlockQuantized rounded = hf::block_quantized(tensor, block);
    scaled[each] = rounded.weight;
    scaled[hf::block_scale_name(each)] = rounded.scales;
    values[each] = hf::dequantized(rounded.weight, rounded.scales,
                                   std::vector<int64_t>(static_cast<size_t>(tensor.dim()), 0), block);
  }
  json json_config = json_file(golden_folder(name) / "config.json");
  write_folder(plain, json_config, values);
  json_config["quantization_config"] = {{"quant_method", "fp8"},
                                        {"fmt", "e4m3"},
                                        {"activation_scheme", "dynamic"},
                                        {"weight_block_size", {block.rows, block.columns}}};
  write_folder(in_blocks, json_config, scaled);
}

void expect_same_tensors(const fs::path& actual, const fs::path& expected) {
  const hf::WeightFiles a(actual), b(expected);
  ASSERT_EQ(a.names(), b.names());
  for (const std::string& name : a.names()) {
    ASSERT_EQ(a.find(name)->dtype, b.find(name)->dtype) << name;
    const bool fp8 = a.find(name)->dtype == hf::Dtype::kF8E4M3;
    const auto bytes = [&](const hf::WeightFiles& files) {
      return fp8 ? files.tensor(name).view(at::kByte) : files.tensor(name);
    };
    expect_identical(bytes(a), bytes(b), name);
  }
}

// Loads a folder in a layout and exports it again.
void pass_through(const fs::path& folder, const layout::GridShape& shape, const fs::path& out) {
  const model::ModelConfig config = model::read_model_config(folder);
  run_ranks(shape.world_size, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid(shape));
    model::VirtualModels models(config, {}, model::chunk_places({}, config, context), context);
    model::load_weights(models, folder, config, 1);
    model::save_pretrained(models, out, {});
  });
}

TEST(Fp8Blocks, EveryLayoutReadsTheSameValues) {
  const TempFolder temp;
  // Blocks that no slice of a rank is a multiple of.
  write_both("deepseek_v3", {.rows = 5, .columns = 7}, temp / "fp8", temp / "plain");
  int number = 0;
  for (const layout::GridShape& shape :
       {layout::GridShape{}, layout::GridShape{.world_size = 2, .tp = 2}, layout::GridShape{.world_size = 4, .tp = 4},
        layout::GridShape{.world_size = 2, .pp = 2}, layout::GridShape{.world_size = 2, .ep = 2}}) {
    const fs::path out = temp / std::to_string(++number);
    SCOPED_TRACE(out.string());
    pass_through(temp / "fp8", shape, out);
    expect_same_tensors(out, temp / "plain");
    EXPECT_FALSE(json_file(out / "config.json").contains("quantization_config"));
  }
}

TEST(Fp8Blocks, ConvertReadsAndWritesThem) {
  const TempFolder temp;
  write_both("deepseek_v3", {}, temp / "fp8", temp / "plain");
  // Out: the values; and back: with the same blocks, bit for bit what they were made of.
  model::convert_checkpoint(temp / "fp8", temp / "out", {});
  expect_same_tensors(temp / "out", temp / "plain");
  EXPECT_FALSE(json_file(temp / "out/config.json").contains("quantization_config"));
  model::convert_checkpoint(temp / "fp8", temp / "copy", {.fp8_blocks = true});
  expect_same_tensors(temp / "copy", temp / "fp8");
  model::convert_checkpoint(golden_folder("deepseek_v3"), temp / "made",
                            {.max_shard_bytes = 50'000, .fp8_blocks = true});
  expect_same_tensors(temp / "made", temp / "fp8");

  const json quantization = json_file(temp / "made/config.json").at("quantization_config");
  EXPECT_EQ(quantization.at("quant_method"), "fp8");
  EXPECT_EQ(quantization.at("weight_block_size"), json({128, 128}));
  const auto others = quantization.at("modules_to_not_convert").get<std::vector<std::string>>();
  EXPECT_NE(std::ranges::find(others, "lm_head"), others.end());
  EXPECT_EQ(std::ranges::find(others, "model.embed_tokens"), others.end());
  const auto is_gate = [](const std::string& name) { return name.ends_with("mlp.gate"); };
  EXPECT_TRUE(std::ranges::any_of(others, is_gate));
}

// Expects the choice of DeepSeek.
TEST(Fp8Blocks, OnlyLinearLayersAreQuantized) {
  const TempFolder temp;
  model::convert_checkpoint(golden_folder("deepseek_v3"), temp / "made", {.dtype = at::kBFloat16, .fp8_blocks = true});
  const hf::WeightFiles files(temp / "made");
  int scaled = 0;
  for (const std::string& name : files.names()) {
    const bool is_linear = name.ends_with("_proj.weight") || name.ends_with("_proj_with_mqa.weight");
    const bool joins_mtp = name.ends_with("eh_proj.weight");
    if (name.ends_with("_scale_inv")) continue;
    const hf::Dtype expected = is_linear && !joins_mtp ? hf::Dtype::kF8E4M3 : hf::Dtype::kBF16;
    EXPECT_EQ(files.find(name)->dtype, expected) << name;
    EXPECT_EQ(files.contains(name + "_scale_inv"), expected == hf::Dtype::kF8E4M3) << name;
    scaled += expected == hf::Dtype::kF8E4M3;
  }
  EXPECT_GT(scaled, 0);
}

TEST(Fp8Blocks, OtherKindsAreRefusedByName) {
  const TempFolder temp;
  json config = json_file(golden_folder("llama") / "config.json");
  const auto error = [&](const json& quantization) {
    config["quantization_config"] = quantization;
    fs::create_directories(temp.path());
    std::ofstream(temp / "config.json") << config.dump();
    return error_of<ConfigError>([&] { model::read_model_config(temp.path()); });
  };
  expect_contains(error({{"quant_method", "gptq"}, {"bits", 4}}), "quant_method \"gptq\"");
  expect_contains(error({{"quant_method", "fp8"}}), "weight_block_size");
  expect_contains(error({{"quant_method", "fp8"}, {"weight_block_size", {128, 0}}}), "weight_block_size");
  expect_contains(error({{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}, {"fmt", "e5m2"}}), "e4m3");
  EXPECT_EQ(error({{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}), "");
}

TEST(Fp8Blocks, FilesThatStoreTheTransposeAreRefused) {
  const TempFolder temp;
  expect_error<ConfigError>(
      [&] { model::convert_checkpoint(golden_folder("gpt2"), temp / "no", {.fp8_blocks = true}); },
      {"fp8_blocks", "gpt2"});
  EXPECT_FALSE(fs::exists(temp / "no"));
}

}  // namespace
}  // namespace megalith::testing
