// Adapters on weights in 4 bits: runs are those of an adapter on a dense model of the same numbers, in every layout.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/hf/weight_files.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/model/adapter.h"
#include "megalith/model/convert/convert.h"
#include "megalith/model/exchange/weights_in_memory.h"
#include "megalith/model/four_bit/four_bit_weights.h"
#include "megalith/model/pretrained.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/golden_model.h"
#include "tests/support/temp_folder.h"
#include "tests/train/resume_case.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

// An adapter of rank 4 on all linear layers; `bits` 4 or 0.
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
TEST(FourBitRun, IsThatOfAnAdapterOnTheNumbers) {
  for (const char* family : {"llama", "gpt2", "qwen3_moe"})
    for (const auto type : {config::QuantizationType::kNf4, config::QuantizationType::kFp4}) {
      const TempFolder folder;
      TrainerCase how = quantized_case(4, family);
      how.args.lora.quantization_type = type;
      write_numbers(golden_folder(family), how, folder / "numbers");
      const std::vector<double> kept = losses_on(golden_folder(family), how);
      EXPECT_EQ(kept, losses_on(folder / "numbers", quantized_case(0))) << family;
      EXPECT_NE(kept, losses_on(golden_folder(family), quantized_case(0))) << family;
    }
}

// Magnitudes start as the norms of the numbers, not of the weights in the files.
TEST(FourBitRun, MagnitudesAreThoseOfTheNumbers) {
  for (const char* family : {"llama", "gpt2"}) {
    const TempFolder folder;
    TrainerCase how = quantized_case(4, family), dense = quantized_case(0, family);
    how.args.lora.use_dora = dense.args.lora.use_dora = true;
    write_numbers(golden_folder(family), how, folder / "numbers");
    EXPECT_EQ(losses_on(golden_folder(family), how), losses_on(folder / "numbers", dense)) << family;
  }
}

struct FourBitLayout {
  const char* name;
  int tp = 1, pp = 1, dp = 1, cp = 1;
  std::optional<int> vpp{};
  bool sequence_parallel = false;
};

TEST(FourBitRun, EveryLayoutTrainsAsOneRank) {
  for (const bool double_quantization : {true, false}) {
    TrainerCase one = quantized_case(4);
    one.args.lora.double_quantization = double_quantization;
    const std::vector<double> expected = losses_on(golden_folder("llama"), one);
    for (const FourBitLayout& each : {FourBitLayout{.name = "tp2", .tp = 2},
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
        expect_close(actual[i], expected[i], fmt::format("{}, loss {}", each.name, i));
    }
  }
}

TEST(FourBitRun, ExpertsMayLieOnOtherRanks) {
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
  expect_contains(model::not_in_four_bit(experts), "experts");
  EXPECT_EQ(model::not_in_four_bit(model::read_model_config(golden_folder("llama"))), "");
}

// Replicas are compared by their codes; recomputed layers read the same numbers.
TEST(FourBitRun, ReplicasAreCheckedAndLayersRecomputed) {
  TrainerCase how = quantized_case(4);
  const std::vector<double> expected = losses_on(golden_folder("llama"), how);
  how.args.recompute.granularity = config::RecomputeGranularity::kFull;
  EXPECT_EQ(losses_on(golden_folder("llama"), how), expected);
  how.dp = 2;
  how.args.batch.micro_batch_size = 4;
  how.args.fault.check_weight_hash_interval = 1;
  const std::vector<double> checked = losses_on(golden_folder("llama"), how);
  for (size_t i = 0; i < checked.size(); ++i) expect_close(checked[i], expected[i], fmt::format("loss {}", i));
}

// Copies a model folder with the linear weights of its layers in 4 bits, as transformers saves a model with
// load_in_4bit.
void write_as_bitsandbytes(const fs::path& from, const fs::path& to, const ops::FourBitFormat& format) {
  fs::create_directories(to);
  const hf::WeightFiles files(from);
  std::vector<std::pair<hf::WeightSpec, at::Tensor>> tensors;
  const auto add = [&](const std::string& name, hf::Dtype dtype, const at::Tensor& tensor) {
    tensors.push_back({{name, dtype, tensor.sizes().vec()}, tensor});
  };
  for (const std::string& name : files.names()) {
    const at::Tensor weight = files.tensor(name);
    if (!name.ends_with("_proj.weight")) {
      add(name, hf::Dtype::kF32, weight);
      continue;
    }
    const ops::FourBitTensor kept = ops::to_four_bit(weight, format);
    nlohmann::json state{
        {"quant_type", "nf4"}, {"blocksize", 64}, {"dtype", "float32"}, {"shape", weight.sizes().vec()}};
    add(name, hf::Dtype::kU8, kept.codes.view({-1, 1}));
    add(name + ".absmax", format.double_quantization ? hf::Dtype::kU8 : hf::Dtype::kF32, kept.scales);
    at::Tensor values = at::empty({16}, at::kFloat);
    std::ranges::copy(kept.values, values.mutable_data_ptr<float>());
    add(name + ".quant_map", hf::Dtype::kF32, values);
    if (format.double_quantization) {
      add(name + ".nested_absmax", hf::Dtype::kF32, kept.nested);
      add(name + ".nested_quant_map", hf::Dtype::kF32, kept.map);
      state.update({{"nested_blocksize", 256}, {"nested_dtype", "float32"}, {"nested_offset", kept.offset}});
    }
    const std::string text = state.dump();
    at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
    std::ranges::copy(text, bytes.mutable_data_ptr<uint8_t>());
    add(name + ".quant_state.bitsandbytes__nf4", hf::Dtype::kU8, bytes);
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
  config["quantization_config"] = {{"quant_method", "bitsandbytes"},
                                   {"load_in_4bit", true},
                                   {"bnb_4bit_quant_type", "nf4"},
                                   {"bnb_4bit_use_double_quant", format.double_quantization}};
  std::ofstream(to / "config.json") << config.dump();
}

TEST(FourBitRun, ReadsModelsThatBitsandbytesQuantized) {
  for (const bool double_quantization : {true, false}) {
    const TempFolder folder;
    const ops::FourBitFormat format{.double_quantization = double_quantization};
    write_as_bitsandbytes(golden_folder("llama"), folder / "model", format);
    TrainerCase how = quantized_case(4);
    how.args.lora.double_quantization = double_quantization;
    const std::vector<double> expected = losses_on(golden_folder("llama"), how);
    EXPECT_EQ(losses_on(folder / "model", how), expected) << "kept in 4 bits";
    EXPECT_EQ(losses_on(folder / "model", quantized_case(0)), expected) << "read as numbers";
    how.tp = 2;
    const std::vector<double> split = losses_on(folder / "model", how);
    for (size_t i = 0; i < split.size(); ++i) expect_close(split[i], expected[i], fmt::format("tp 2, loss {}", i));
  }
}

// Weights in fp8 are multiplied by their scales first.
TEST(FourBitRun, ReadsFp8WithScales) {
  const TempFolder folder;
  model::convert_checkpoint(golden_folder("llama"), folder / "fp8", {.fp8_blocks = true});
  model::convert_checkpoint(folder / "fp8", folder / "numbers", {});
  EXPECT_EQ(losses_on(folder / "fp8", quantized_case(4)), losses_on(folder / "numbers", quantized_case(4)));
}

// The base is not written: checkpoints hold the adapter, and runs continue from them.
TEST(FourBitRun, ContinuesBitForBit) {
  const TempFolder whole, rest;
  const auto run = [&](const TempFolder& out, std::optional<fs::path> checkpoint) {
    TrainerCase how{.tp = 2};
    how.args = resume_arguments(out.path(), 4, 2);
    how.args.run.finetuning_type = config::FinetuningType::kLora;
    how.args.lora.rank = 4;
    how.args.lora.quantization_bit = 4;
    run_resumable(how, {.model = "qwen3", .checkpoint = std::move(checkpoint)});
  };
  run(whole, std::nullopt);
  run(rest, whole / "checkpoint-2");
  expect_same_tensors(rest / "checkpoint-4", whole / "checkpoint-4", /*with_rng=*/true);
  EXPECT_FALSE(fs::exists(whole / "checkpoint-4" / "model.safetensors"));
}

TEST(FourBitRun, WhatCannotBeKeptIsRefused) {
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
