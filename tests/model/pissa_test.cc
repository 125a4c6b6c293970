// Adapters that start as the principal parts of their weights: against peft's (tests/data/pissa/make.py), in every
// layout; their files; and as ordinary adapters of twice the rank.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/hf/weight_files.h"
#include "megalith/model/adapter.h"
#include "megalith/model/adapter_start.h"
#include "megalith/model/convert/convert.h"
#include "megalith/peft/principal_start.h"
#include "tests/model/layout_case.h"
#include "tests/model/model_support.h"
#include "tests/model/random_adapter.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kA = ".lora_A.weight", kWrapper = "base_model.model.";

struct GridLayout {
  int tp = 1, pp = 1, dp = 1;
  std::string name() const { return fmt::format("tp {} pp {} dp {}", tp, pp, dp); }
};
constexpr std::array<GridLayout, 6> kLayouts{
    {{}, {.tp = 2}, {.tp = 4}, {.pp = 2}, {.dp = 2}, {.tp = 2, .pp = 2, .dp = 2}}};

void with_layout(const fs::path& folder, const GridLayout& layout, const model::AdapterSource& source,
                 const std::function<void(const model::VirtualModels&)>& body) {
  run_ranks(layout.tp * layout.pp * layout.dp, [&](const Rank& r) {
    parallel::ParallelContext context(r.world,
                                      layout::RankGrid({.world_size = r.size, .tp = layout.tp, .pp = layout.pp}));
    model::ModelSettings settings;
    settings.options.sequence_parallel = layout.tp > 1;
    body(model::with_adapter(folder, settings, context, source));
  });
}

std::string file_text(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Pissa : public ::testing::TestWithParam<std::string> {
 protected:
  fs::path peft() const { return fs::path("tests/data/pissa") / GetParam(); }
  fs::path base() const { return golden_folder(GetParam()); }
  // A new adapter with the choices of peft's.
  peft::AdapterConfig fresh() const {
    peft::AdapterConfig config = peft::read_adapter_config(peft());
    config.source.reset();
    return config;
  }
  at::Tensor expected() const { return hf::SafetensorsFile(peft() / "expected.safetensors").tensor("logits").clone(); }
  void expect_logits(const at::Tensor& logits, const std::string& what) const {
    expect_close(logits.narrow(1, 0, 64), expected(), what, 1e-4);
  }
  TempFolder temp_;
};

// Singular vectors have either sign, so products are compared.
TEST_P(Pissa, StartsAsInPeft) {
  const hf::SafetensorsFile golden(peft() / "start.safetensors");
  const double scale = fresh().scale();
  const bool transposed = GetParam() == "gpt2";
  for (const GridLayout& layout : kLayouts) {
    SCOPED_TRACE(layout.name());
    const fs::path to = temp_ / layout.name();
    with_layout(base(), layout, {.fresh = fresh()}, [&](const model::VirtualModels& models) {
      model::save_adapter(models, to / "adapter");
      model::save_pretrained(models, to / "rest", {.dtype = at::kFloat});
    });
    const hf::SafetensorsFile adapter(to / "adapter" / "adapter_model.safetensors"),
        start(to / "adapter" / "adapter_init.safetensors");
    const hf::WeightFiles rest(to / "rest"), whole(base());
    int64_t modules = 0;
    for (const hf::TensorInfo& info : adapter.tensors()) {
      expect_identical(start.tensor(info.name), adapter.tensor(info.name), info.name);
      if (!info.name.ends_with(kA)) continue;
      ++modules;
      const std::string module = info.name.substr(0, info.name.size() - kA.size());
      const at::Tensor part = adapter.tensor(module + ".lora_B.weight").mm(adapter.tensor(info.name));
      expect_close(part, golden.tensor(module + ".lora_B.weight").mm(golden.tensor(info.name)), module);
      const std::string weight = module.substr(kWrapper.size()) + ".weight";
      const at::Tensor all = rest.tensor(weight) + (transposed ? part.t() : part) * scale;
      expect_close(all, whole.tensor(weight), weight);
    }
    EXPECT_EQ(2 * modules, static_cast<int64_t>(adapter.tensors().size()));
    for (const hf::TensorInfo& info : golden.tensors())
      if (info.name.starts_with("residual."))
        expect_close(rest.tensor(info.name.substr(9)), golden.tensor(info.name), info.name);
    // One rank computes each module, from the same numbers in every layout.
    const fs::path first = temp_ / kLayouts[0].name();
    for (const hf::TensorInfo& info : adapter.tensors())
      expect_identical(adapter.tensor(info.name),
                       hf::SafetensorsFile(first / "adapter" / "adapter_model.safetensors").tensor(info.name),
                       info.name);
    for (const std::string& name : rest.names())
      expect_identical(rest.tensor(name), hf::WeightFiles(first / "rest").tensor(name), name);
  }
}

TEST_P(Pissa, TheRandomizedStartIsTheSameInEveryLayout) {
  peft::AdapterConfig config = fresh();
  config.pissa->iterations = 2;
  std::map<std::string, at::Tensor> first;
  for (const GridLayout& layout : kLayouts) {
    SCOPED_TRACE(layout.name());
    with_layout(base(), layout, {.fresh = config},
                [&](const model::VirtualModels& models) { model::save_adapter(models, temp_ / layout.name()); });
    const hf::SafetensorsFile adapter(temp_ / layout.name() / "adapter_model.safetensors");
    for (const hf::TensorInfo& info : adapter.tensors())
      if (first.contains(info.name))
        expect_identical(adapter.tensor(info.name), first[info.name], info.name);
      else
        first[info.name] = adapter.tensor(info.name).clone();
  }
  const auto json = nlohmann::json::parse(file_text(temp_ / kLayouts[0].name() / "adapter_config.json"));
  EXPECT_EQ(json.at("init_lora_weights"), "pissa_niter_2");
}

// The adapter that peft has trained, without a file of its start; the same with one; and joined with it.
TEST_P(Pissa, TrainedByPeft) {
  with_layout(base(), {.tp = 2}, {.trained = peft()}, [&](const model::VirtualModels& models) {
    model::save_adapter(models, temp_ / "again");
    model::save_adapter(models, temp_ / "converted", {.without_start = true});
  });
  EXPECT_TRUE(fs::exists(temp_ / "again" / "adapter_init.safetensors"));
  EXPECT_FALSE(fs::exists(temp_ / "converted" / "adapter_init.safetensors"));
  const auto json = nlohmann::json::parse(file_text(temp_ / "converted" / "adapter_config.json"));
  EXPECT_EQ(json.at("init_lora_weights"), true);
  EXPECT_EQ(json.at("r"), 2 * fresh().rank);
  const hf::SafetensorsFile before(peft() / "adapter_model.safetensors"),
      again(temp_ / "again" / "adapter_model.safetensors");
  for (const hf::TensorInfo& info : before.tensors())
    expect_identical(again.tensor(info.name), before.tensor(info.name), info.name);
  for (const fs::path& adapter : {peft(), temp_ / "again", temp_ / "converted"}) {
    SCOPED_TRACE(adapter);
    for (LayoutCase layout : {LayoutCase{}, LayoutCase{.tp = 2, .sequence_parallel = true, .main_grad = true}}) {
      layout.adapter = adapter;
      expect_logits(run_layout(base(), small_batch(200), layout).logits, "logits");
      layout.merged = true;
      expect_logits(run_layout(base(), small_batch(200), layout).logits, "logits of the merged model");
    }
    const fs::path merged = temp_ / (adapter.filename().string() + "-merged");
    model::convert_checkpoint(base(), merged, {.adapters = {adapter}});
    expect_logits(run_layout(merged, small_batch(200), {}).logits, "logits of the merged files");
  }
}

// Below a new adapter, merged adapters belong to the weights.
TEST_P(Pissa, OnAMergedAdapter) {
  with_layout(base(), {.tp = 2}, {.merged = {peft()}, .fresh = fresh()}, [&](const model::VirtualModels& models) {
    const at::NoGradGuard no_grad;
    const TokenBatch batch = small_batch(200);
    EXPECT_TRUE(model::has_start(models));
    const model::WithMergedAdapter merged(models);
    model::save_pretrained(models, temp_ / "whole", {.dtype = at::kFloat});
  });
  expect_logits(run_layout(temp_ / "whole", small_batch(200), {}).logits, "logits");
}

INSTANTIATE_TEST_SUITE_P(, Pissa, ::testing::Values("llama", "gpt2"), [](const auto& test) { return test.param; });

std::string refused_start(const std::string& name, const model::AdapterSource& source,
                          model::ModelSettings settings = {}) {
  std::string said = "nothing is wrong";
  run_ranks(1, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
    try {
      model::with_adapter(golden_folder(name), settings, context, source);
    } catch (const ConfigError& error) {
      said = error.what();
    }
  });
  return said;
}

model::AdapterSource starting_on(std::vector<std::string> targets, int64_t rank = 2) {
  model::AdapterSource source;
  source.fresh.target_modules = std::move(targets);
  source.fresh.rank = rank;
  source.fresh.pissa = peft::PrincipalStart{};
  return source;
}

TEST(PissaRefuses, WhatHasNoPrincipalPart) {
  expect_contains(refused_start("mixtral", starting_on({"all"})), "is one of the experts");
  expect_contains(refused_start("mixtral", starting_on({"gate"})), "is one of the routers");
  expect_contains(refused_start("llama", starting_on({"embed_tokens"})), "is one of the embeddings");
  expect_contains(refused_start("llama", starting_on({"k_proj"}, 33)),
                  "lora_rank is 33, and model.layers.0.self_attn.k_proj has 32 singular values");
  model::ModelSettings settings;
  settings.options.quantization.emplace();
  expect_contains(refused_start("llama", starting_on({"all"}), settings), "which quantization_bit cannot change");
}

TEST(PissaRefuses, AStartThatNoFileHolds) {
  const TempFolder temp;
  fs::copy("tests/data/pissa/llama", temp / "adapter");
  nlohmann::json json = nlohmann::json::parse(file_text(temp / "adapter" / "adapter_config.json"));
  const auto write = [&](const char* start) {
    json["init_lora_weights"] = start;
    std::ofstream(temp / "adapter" / "adapter_config.json") << json.dump();
  };
  write("pissa_niter_4");
  expect_contains(refused_start("llama", {.trained = temp / "adapter"}), "has no adapter_init.safetensors");
  EXPECT_THROW(model::convert_checkpoint(golden_folder("llama"), temp / "no", {.adapters = {temp / "adapter"}}),
               ConfigError);
  write("olora");
  expect_contains(refused_start("llama", {.trained = temp / "adapter"}), "changes the base model");
  write("pissa_niter_x");
  EXPECT_THROW(peft::read_adapter_config(temp / "adapter"), Error);
}

}  // namespace
}  // namespace megalith::testing
