// Adapters on weights in 4 and 8 bits: runs are those of an adapter on a dense model of the same numbers, in every
// layout.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/config/derive.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/hf/weight_files.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/model/adapter.h"
#include "megalith/model/convert/convert.h"
#include "megalith/model/exchange/weights_in_memory.h"
#include "megalith/model/pretrained.h"
#include "megalith/model/quantized/quantized_weights.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/golden_model.h"
#include "tests/support/temp_folder.h"
#include "tests/train/resume_case.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

// An adapter of rank 4 on all linear layers; `bits` 4, 8 or 0.
TrainerCase quantized_case(int bits, const std::string& name = "one rank") {
  TrainerCase how{.name = name};
  how.args.run.finetuning_type = config::FinetuningType::kLora;
  how.args.run.max_steps = 3;
  how.args.lora.rank = 4;
  how.args.optimizer.learning_rate = 1e-3;
  if (bits > 0) how.args.lora.quantization_bit = bits;
  return how;
}

std::vector<double> losses_on(const fs::path& folder, const TrainerCase& how) {
  const auto rows = random_sequences(24, 60, 1);
  const RunLog log = run_training(folder, how, rows, random_sequences(8, 60, 2));
  std::vector<double> losses = log.numbers("loss");
  losses.push_back(*log.evaluation.find("eval_loss"));
  return losses;
}

// Writes the numbers of a quantized model as a plain one: the base below the adapter.
void write_numbers(const fs::path& from, const TrainerCase& how, const fs::path& to) {
  run_trainer_ranks(from, how, [&](const TrainerRank& r) {
    model::save_pretrained(r.models, to, {.dtype = at::kFloat, .overwrite = true});
  });
}

// gpt2 stores transposed weights and fuses query, key and value; the experts of qwen3_moe stay as they are.
TEST(QuantizedRun, IsThatOfAnAdapterOnTheNumbers) {
  for (const char* family : {"llama", "gpt2", "qwen3_moe"})
    for (const auto& [bits, type] : {std::pair{4, config::QuantizationType::kNf4},
                                     {4, config::QuantizationType::kFp4},
                                     {8, config::QuantizationType::kNf4}}) {
      const TempFolder folder;
      TrainerCase how = quantized_case(bits, family);
      how.args.lora.quantization_type = type;
      write_numbers(golden_folder(family), how, folder / "numbers");
      const std::vector<double> kept = losses_on(golden_folder(family), how);
      EXPECT_EQ(kept, losses_on(folder / "numbers", quantized_case(0))) << family << ", bits " << bits;
      EXPECT_NE(kept, losses_on(golden_folder(family), quantized_case(0))) << family << ", bits " << bits;
    }
}

// Magnitudes start as the norms of the numbers, not of the weights in the files.
TEST(QuantizedRun, MagnitudesAreThoseOfTheNumbers) {
  for (const auto& [family, bits] : {std::pair{"llama", 4}, {"gpt2", 4}, {"llama", 8}}) {
    const TempFolder folder;
    TrainerCase how = quantized_case(bits, family), dense = quantized_case(0, family);
    how.args.lora.use_dora = dense.args.lora.use_dora = true;
    write_numbers(golden_folder(family), how, folder / "numbers");
    EXPECT_EQ(losses_on(golden_folder(family), how), losses_on(folder / "numbers", dense)) << family;
  }
}

struct QuantizedLayout {
  const char* name;
  int tp = 1, pp = 1, dp = 1, cp = 1;
  std::optional<int> vpp{};
  bool sequence_parallel = false;
};

TEST(QuantizedRun, EveryLayoutTrainsAsOneRank) {
  for (const auto& [bits, double_quantization] : {std::pair{4, true}, {4, false}, {8, true}}) {
    TrainerCase one = quantized_case(bits);
    one.args.lora.double_quantization = double_quantization;
    const std::vector<double> expected = losses_on(golden_folder("llama"), one);
    for (const QuantizedLayout& each :
         {QuantizedLayout{.name = "tp2", .tp = 2},
          {.name = "tp4 sp", .tp = 4, .sequence_parallel = true},
          {.name = "pp2", .pp = 2},
          {.name = "pp2 vpp2", .pp = 2, .vpp = 2},
          {.name = "cp2", .cp = 2},
          {.name = "dp2", .dp = 2},
          {.name = "tp2 pp2 dp2", .tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true}}) {
      TrainerCase how = one;
      how.name = each.name;
      how.tp = each.tp, how.pp = each.pp, how.dp = each.dp, how.cp = each.cp, how.vpp = each.vpp;
      how.args.parallel.sequence_parallel = each.sequence_parallel;
      how.args.batch.gradient_accumulation_steps = each.pp;
      how.args.batch.micro_batch_size = 8 / each.dp / each.pp;
      const std::vector<double> actual = losses_on(golden_folder("llama"), how);
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t i = 0; i < actual.size(); ++i)
        expect_close(actual[i], expected[i], fmt::format("{} bits, {}, loss {}", bits, each.name, i));
    }
  }
}

TEST(QuantizedRun, ExpertsMayLieOnOtherRanks) {
  TrainerCase how = quantized_case(4, "dp2");
  how.dp = 2;
  how.args.batch.micro_batch_size = 4;
  const std::vector<double> expected = losses_on(golden_folder("qwen3_moe"), how);
  how.name = "dp2 ep2";
  how.args.parallel.ep = 2;
  const std::vector<double> actual = losses_on(golden_folder("qwen3_moe"), how);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) expect_close(actual[i], expected[i], fmt::format("loss {}", i), 1e-4);
  const model::ModelConfig experts = model::read_model_config(golden_folder("qwen3_moe"));
  expect_contains(model::not_quantized(experts, 8), "quantization_bit 8: the weights of experts");
  EXPECT_EQ(model::not_quantized(model::read_model_config(golden_folder("llama")), 4), "");
}

// Replicas are compared by their codes; recomputed layers read the same numbers.
TEST(QuantizedRun, ReplicasAreCheckedAndLayersRecomputed) {
  for (const int bits : {4, 8}) {
    TrainerCase how = quantized_case(bits);
    const std::vector<double> expected = losses_on(golden_folder("llama"), how);
    how.args.recompute.granularity = config::RecomputeGranularity::kFull;
    EXPECT_EQ(losses_on(golden_folder("llama"), how), expected);
    how.dp = 2;
    how.args.batch.micro_batch_size = 4;
    how.args.fault.check_weight_hash_interval = 1;
    const std::vector<double> checked = losses_on(golden_folder("llama"), how);
    for (size_t i = 0; i < checked.size(); ++i) expect_close(checked[i], expected[i], fmt::format("loss {}", i));
  }
}

using NamedTensors = std::vector<std::pair<hf::WeightSpec, at::Tensor>>;

void add_tensor(NamedTensors& tensors, const std::string& name, const at::Tensor& tensor) {
  tensors.push_back({{name, hf::dtype_of(tensor.scalar_type()), tensor.sizes().vec()}, tensor});
}

// As Linear4bit writes a weight.
void add_four_bit(NamedTensors& tensors, const std::string& name, const at::Tensor& weight,
                  const ops::FourBitFormat& format) {
  const ops::FourBitTensor kept = ops::to_four_bit(weight, format);
  nlohmann::json state{{"quant_type", "nf4"}, {"blocksize", 64}, {"dtype", "float32"}, {"shape", weight.sizes().vec()}};
  add_tensor(tensors, name, kept.codes.view({-1, 1}));
  add_tensor(tensors, name + ".absmax", kept.scales);
  at::Tensor values = at::empty({16}, at::kFloat);
  std::ranges::copy(kept.values, values.mutable_data_ptr<float>());
  add_tensor(tensors, name + ".quant_map", values);
  if (format.double_quantization) {
    add_tensor(tensors, name + ".nested_absmax", kept.nested);
    add_tensor(tensors, name + ".nested_quant_map", kept.map);
    state.update({{"nested_blocksize", 256}, {"nested_dtype", "float32"}, {"nested_offset", kept.offset}});
  }
  const std::string text = state.dump();
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::ranges::copy(text, bytes.mutable_data_ptr<uint8_t>());
  add_tensor(tensors, name + ".quant_state.bitsandbytes__nf4", bytes);
}

// As Linear8bitLt writes a weight.
void add_eight_bit(NamedTensors& tensors, const std::string& name, const at::Tensor& weight) {
  const ops::EightBitTensor kept = ops::to_eight_bit(weight);
  const std::string layer = name.substr(0, name.size() - std::string_view("weight").size());
  add_tensor(tensors, name, kept.codes);
  add_tensor(tensors, layer + "SCB", kept.scales);
  add_tensor(tensors, layer + "weight_format", at::zeros({}, at::kByte));
}

// Copies a model folder with the linear weights of its layers quantized, as transformers saves a model with
// load_in_4bit or load_in_8bit.
void write_as_bitsandbytes(const fs::path& from, const fs::path& to, const ops::QuantizedFormat& format) {
  fs::create_directories(to);
  const hf::WeightFiles files(from);
  const auto* four_bit = std::get_if<ops::FourBitFormat>(&format);
  NamedTensors tensors;
  for (const std::string& name : files.names()) {
    const at::Tensor weight = files.tensor(name);
    if (!name.ends_with("_proj.weight"))
      add_tensor(tensors, name, weight);
    else if (four_bit)
      add_four_bit(tensors, name, weight, *four_bit);
    else
      add_eight_bit(tensors, name, weight);
  }
  std::vector<hf::WeightSpec> specs;
  for (const auto& [spec, tensor] : tensors) specs.push_back(spec);
  hf::WeightWriter writer(to, specs);
  writer.create_files();
  for (const auto& [spec, tensor] : tensors) writer.write(spec.name, tensor);
  writer.sync();
  writer.write_index();
  std::ifstream in(from / "config.json");
  nlohmann::json config = nlohmann::json::parse(in);
  config["quantization_config"] = {
      {"quant_method", "bitsandbytes"}, {"load_in_4bit", four_bit != nullptr}, {"load_in_8bit", four_bit == nullptr}};
  std::ofstream(to / "config.json") << config.dump();
}

TEST(QuantizedRun, ReadsModelsThatBitsandbytesQuantized) {
  for (const ops::QuantizedFormat& format : {ops::QuantizedFormat(ops::FourBitFormat{}),
                                             {ops::FourBitFormat{.double_quantization = false}},
                                             {ops::EightBitFormat{}}}) {
    const TempFolder folder;
    write_as_bitsandbytes(golden_folder("llama"), folder / "model", format);
    TrainerCase how = quantized_case(ops::bits_of(format));
    if (const auto* four_bit = std::get_if<ops::FourBitFormat>(&format))
      how.args.lora.double_quantization = four_bit->double_quantization;
    const std::vector<double> expected = losses_on(golden_folder("llama"), how);
    EXPECT_EQ(losses_on(folder / "model", how), expected) << "kept in fewer bits";
    EXPECT_EQ(losses_on(folder / "model", quantized_case(0)), expected) << "read as numbers";
    how.tp = 2;
    const std::vector<double> split = losses_on(folder / "model", how);
    for (size_t i = 0; i < split.size(); ++i) expect_close(split[i], expected[i], fmt::format("tp 2, loss {}", i));
  }
}

// Returns the message with which a model in so many bits is refused; empty if it is not.
std::string refusal_to_load(const fs::path& folder, int bits) {
  std::string message;
  run_ranks(1, [&](const Rank& rank) {
    const config::TrainingArguments args = quantized_case(bits).effective();
    parallel::ParallelContext context(rank.world, layout::RankGrid(config::grid_shape(args, rank.size)));
    try {
      model_for(folder, args, context);
    } catch (const Error& error) {
      message = error.what();
    }
  });
  return message;
}

TEST(QuantizedRun, FilesInAnotherNumberOfBitsAreRefused) {
  const TempFolder folder;
  write_as_bitsandbytes(golden_folder("llama"), folder / "model", ops::EightBitFormat{});
  expect_contains(refusal_to_load(folder / "model", 4),
                  "is stored in 8 bits, and quantization_bit is 4; set quantization_bit 8");
  EXPECT_EQ(refusal_to_load(folder / "model", 8), "");
}

// Numbers are rounded to fp16 before they are quantized to 8 bits.
TEST(QuantizedRun, NumbersTooLargeForFp16AreReported) {
  const TempFolder folder;
  fs::create_directories(folder / "model");
  fs::copy_file(golden_folder("llama") / "config.json", folder / "model" / "config.json");
  const hf::WeightFiles files(golden_folder("llama"));
  std::vector<hf::WeightSpec> specs;
  for (const std::string& name : files.names())
    specs.push_back({name, files.find(name)->dtype, files.find(name)->shape});
  hf::WeightWriter writer(folder / "model", specs);
  writer.create_files();
  for (const std::string& name : files.names()) {
    const at::Tensor weight = files.tensor(name).clone();
    if (name.ends_with("0.mlp.up_proj.weight")) weight[0][0].fill_(1e5);
    writer.write(name, weight);
  }
  writer.sync();
  writer.write_index();
  EXPECT_EQ(refusal_to_load(folder / "model", 4), "");
  expect_contains(refusal_to_load(folder / "model", 8), "0.mlp.up_proj.weight");
}

// Weights in fp8 are multiplied by their scales first.
TEST(QuantizedRun, ReadsFp8WithScales) {
  const TempFolder folder;
  model::convert_checkpoint(golden_folder("llama"), folder / "fp8", {.fp8_blocks = true});
  model::convert_checkpoint(folder / "fp8", folder / "numbers", {});
  EXPECT_EQ(losses_on(folder / "fp8", quantized_case(4)), losses_on(folder / "numbers", quantized_case(4)));
}

// The base is not written: checkpoints hold the adapter, and runs continue from them.
void expect_continued(int bits) {
  const TempFolder whole, rest;
  const auto run = [&](const TempFolder& out, std::optional<fs::path> checkpoint) {
    TrainerCase how{.tp = 2};
    how.args = resume_arguments(out.path(), 4, 2);
    how.args.run.finetuning_type = config::FinetuningType::kLora;
    how.args.lora.rank = 4;
    how.args.lora.quantization_bit = bits;
    run_resumable(how, {.model = "qwen3", .checkpoint = std::move(checkpoint)});
  };
  run(whole, std::nullopt);
  run(rest, whole / "checkpoint-2");
  expect_same_tensors(rest / "checkpoint-4", whole / "checkpoint-4", /*with_rng=*/true);
  EXPECT_FALSE(fs::exists(whole / "checkpoint-4" / "model.safetensors"));
}

TEST(QuantizedRun, ContinuesBitForBit) {
  for (const int bits : {4, 8}) expect_continued(bits);
}

TEST(QuantizedRun, WhatCannotBeKeptIsRefused) {
  const auto refusal = [](const TrainerCase& how, const std::function<void(const TrainerRank&)>& body) {
    std::string message;
    run_trainer_ranks(golden_folder("llama"), quantized_case(4), [&](const TrainerRank& r) {
      try {
        if (how.args.lora.additional_target.empty())
          body(r);
        else
          model_for(golden_folder("llama"), how.effective(), r.models.context());
      } catch (const ConfigError& error) {
        message = error.what();
      }
    });
    return message;
  };
  expect_contains(
      refusal(quantized_case(4), [](const TrainerRank& r) { const model::WithMergedAdapter merged(r.models); }),
      "megalith convert");
  TrainerCase saved = quantized_case(4);
  saved.args.lora.target = {"up_proj"};
  saved.args.lora.additional_target = {"o_proj"};
  expect_contains(refusal(saved, {}), "additional_target");
}

}  // namespace
}  // namespace megalith::testing
