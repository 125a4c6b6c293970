// Adapters on multi-token-prediction layers: their names, their files in every layout, merging, and models that have
// such layers where the adapter has none, or the other way around.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>

#include "megalith/hf/safetensors_file.h"
#include "megalith/hf/weight_files.h"
#include "megalith/model/adapter.h"
#include "megalith/model/convert/convert.h"
#include "megalith/model/families/family.h"
#include "tests/model/model_support.h"
#include "tests/model/mtp_base.h"
#include "tests/model/random_adapter.h"
#include "tests/support/close.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

// A family, the key of its config.json, the module of the projection, and the beginning of the layers' names.
struct MtpFamily {
  const char *name, *key, *projection, *layer;
  int64_t layers;
};
void PrintTo(const MtpFamily& family, std::ostream* out) { *out << family.name; }

class MtpAdapter : public ::testing::TestWithParam<MtpFamily> {
 protected:
  void SetUp() override {
    base_ = temp_ / "base";
    write_mtp_model(GetParam().name, GetParam().key, GetParam().layers, base_);
    config_ = model::read_pretrained_config(base_);
    ASSERT_EQ(config_.mtp_layers, GetParam().layers);
    write_random_adapter(base_, temp_ / "adapter", everything(config_, !config_.tied_embeddings));
  }
  static bool is_mtp(const std::string& name) {
    return name.find(GetParam().projection) != std::string::npos || name.find(GetParam().layer) != std::string::npos ||
           name.find("model.layers.5.") != std::string::npos;
  }
  // The model with adapters, on tp x ep ranks.
  void with_adapter(const model::AdapterSource& source, int tp, int dp, const model::ModelSettings& settings,
                    const std::function<void(const model::VirtualModels&)>& body) const {
    run_ranks(tp * dp, [&](const Rank& r) {
      parallel::ParallelContext context(
          r.world, layout::RankGrid({.world_size = r.size, .tp = tp, .ep = config_.moe ? dp : 1, .etp = 1}));
      model::ModelSettings here = settings;
      here.options.sequence_parallel = tp > 1;
      body(model::with_adapter(base_, here, context, source));
    });
  }
  TempFolder temp_;
  fs::path base_;
  model::ModelConfig config_;
};

TEST_P(MtpAdapter, HasTheNamesOfTheFiles) {
  const hf::SafetensorsFile file(temp_ / "adapter" / "adapter_model.safetensors");
  const hf::WeightFiles base(base_);
  const std::string wrapper = "base_model.model.";
  EXPECT_TRUE(file.find(wrapper + GetParam().projection + ".lora_A.weight"));
  int64_t in_layers = 0;
  for (const hf::TensorInfo& info : file.tensors()) {
    if (!info.name.ends_with(".lora_B.weight") || !is_mtp(info.name)) continue;
    ++in_layers;
    const std::string module = info.name.substr(wrapper.size(), info.name.size() - wrapper.size() - 14);
    if (module.find(".experts.") == std::string::npos) {
      EXPECT_TRUE(base.contains(module + ".weight")) << module;
    }
  }
  EXPECT_GT(in_layers, 5);
}

TEST_P(MtpAdapter, WrittenAsReadInEveryLayout) {
  const hf::SafetensorsFile before(temp_ / "adapter" / "adapter_model.safetensors");
  for (const auto& [tp, dp] : {std::array{2, 1}, {2, 2}}) {
    const fs::path to = temp_ / fmt::format("again-{}-{}", tp, dp);
    with_adapter({.trained = temp_ / "adapter"}, tp, dp, {},
                 [&](const model::VirtualModels& models) { model::save_adapter(models, to); });
    const hf::SafetensorsFile after(to / "adapter_model.safetensors");
    ASSERT_EQ(before.tensors().size(), after.tensors().size());
    for (const hf::TensorInfo& info : before.tensors())
      expect_identical(after.tensor(info.name), before.tensor(info.name), info.name);
  }
}

// Merged in memory and in files; prediction layers change like the others.
TEST_P(MtpAdapter, IsMerged) {
  model::convert_checkpoint(base_, temp_ / "merged", {.adapters = {temp_ / "adapter"}});
  with_adapter({.trained = temp_ / "adapter"}, 2, 1, {}, [&](const model::VirtualModels& models) {
    const model::WithMergedAdapter merged(models);
    model::save_pretrained(models, temp_ / "live", {.dtype = at::kFloat});
  });
  const hf::WeightFiles base(base_), files(temp_ / "merged"), live(temp_ / "live");
  int64_t changed = 0;
  for (const std::string& name : base.names()) {
    expect_close(live.tensor(name), files.tensor(name), name, 1e-6);
    const bool copy = name.find("embed_tokens") != std::string::npos || name.find("shared_head") != std::string::npos;
    if (is_mtp(name) && !copy) changed += files.tensor(name).equal(base.tensor(name)) ? 0 : 1;
  }
  EXPECT_GT(changed, 5);
}

// peft's adapters have no such tensors: the layers stay frozen then, and the file as it was.
TEST_P(MtpAdapter, MayBeWithoutThem) {
  peft::AdapterConfig without = everything(config_, false);
  without.on_mtp = false;
  write_random_adapter(base_, temp_ / "without", without);
  const hf::SafetensorsFile file(temp_ / "without" / "adapter_model.safetensors");
  for (const hf::TensorInfo& info : file.tensors()) EXPECT_FALSE(is_mtp(info.name)) << info.name;
  with_adapter({.trained = temp_ / "without"}, 2, 1, {}, [&](const model::VirtualModels& models) {
    for (const nn::Parameter* parameter : models.parameters())
      EXPECT_FALSE(parameter->spec.name.starts_with("mtp.") && parameter->value.requires_grad())
          << parameter->spec.name;
    model::save_adapter(models, temp_ / "again");
  });
  EXPECT_EQ(hf::SafetensorsFile(temp_ / "again" / "adapter_model.safetensors").tensors().size(), file.tensors().size());
}

// A run without the layers does without their part of the adapter.
TEST_P(MtpAdapter, IsReadByModelsWithoutThem) {
  model::ModelSettings settings;
  settings.overrides.mtp_layers = 0;
  with_adapter({.trained = temp_ / "adapter"}, 1, 1, settings,
               [&](const model::VirtualModels& models) { model::save_adapter(models, temp_ / "rest"); });
  with_adapter({.merged = {temp_ / "adapter"}, .fresh = everything(config_, false)}, 1, 1, settings,
               [&](const model::VirtualModels& models) { EXPECT_EQ(models.config().mtp_layers, 0); });
  const hf::SafetensorsFile before(temp_ / "adapter" / "adapter_model.safetensors"),
      after(temp_ / "rest" / "adapter_model.safetensors");
  for (const hf::TensorInfo& info : before.tensors()) {
    if (is_mtp(info.name)) {
      EXPECT_FALSE(after.find(info.name)) << info.name;
    } else {
      expect_identical(after.tensor(info.name), before.tensor(info.name), info.name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    , MtpAdapter,
    ::testing::Values(MtpFamily{"deepseek_v3", "num_nextn_predict_layers", "model.layers.4.eh_proj", "model.layers.4.",
                                1},
                      MtpFamily{"glm4_moe", "num_nextn_predict_layers", "model.layers.4.eh_proj", "model.layers.4.", 2},
                      MtpFamily{"qwen3_5_text", "mtp_num_hidden_layers", "mtp.fc", "mtp.layers.0.", 1},
                      MtpFamily{"qwen3_next", "num_nextn_predict_layers", "mtp.fc", "mtp.layers.0.", 1}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace megalith::testing
