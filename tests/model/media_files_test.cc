// Folders of models that see and hear, in and out: names and experts in the form that was read, tensors of the towers
// carried through bit for bit, and changes in the right place of a nested config.json.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/hf/weight_files.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/model/convert/convert.h"
#include "megalith/model/pretrained.h"
#include "megalith/model/weight_check.h"
#include "tests/model/layout_case.h"
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

// A copy of a golden model with other tensors or another config.json.
void write_variant(const std::string& name, const fs::path& target, const std::function<void(Tensors&)>& change,
                   const std::function<void(json&)>& change_config = {}) {
  fs::create_directories(target);
  json config = json_file(golden_folder(name) / "config.json");
  if (change_config) change_config(config);
  std::ofstream(target / "config.json") << config.dump(2);
  const hf::WeightFiles files(golden_folder(name));
  Tensors tensors;
  for (const std::string& each : files.names()) tensors[each] = files.tensor(each).contiguous();
  if (change) change(tensors);
  std::vector<hf::WeightSpec> specs;
  for (const auto& [each, tensor] : tensors)
    specs.push_back({each, hf::dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  hf::WeightWriter writer(target, specs);
  writer.create_files();
  for (const auto& [each, tensor] : tensors) writer.write(each, tensor);
  writer.sync();
}

void expect_same_folder(const fs::path& actual, const fs::path& expected) {
  const hf::WeightFiles a(actual), b(expected);
  ASSERT_EQ(a.names(), b.names());
  for (const std::string& name : a.names()) expect_identical(a.tensor(name), b.tensor(name), name);
  EXPECT_EQ(json_file(actual / "config.json"), json_file(expected / "config.json"));
}

// Imports and exports the folder in several layouts, and converts it.
void expect_round_trip(const fs::path& folder) {
  const TempFolder temp;
  int number = 0;
  for (const ModelCase& how : {ModelCase{}, ModelCase{.tp = 2}, ModelCase{.tp = 2, .dp = 2}}) {
    const fs::path out = temp / std::to_string(++number);
    run_model(folder, how, [&](const Rank&, model::VirtualModels& models) { model::save_pretrained(models, out, {}); });
    expect_same_folder(out, folder);
  }
  model::convert_checkpoint(folder, temp / "converted", {.max_shard_bytes = 50'000});
  expect_same_folder(temp / "converted", folder);
}

// gate_up_proj [E, 2i, h] and down_proj [E, h, i] become one tensor per expert.
void unstack(Tensors& tensors, const std::string& prefix) {
  for (const auto& [name, stack] : Tensors(tensors)) {
    const size_t end = name.find("experts.");
    if (!name.starts_with(prefix) || end == std::string::npos) continue;
    const bool is_down = name.ends_with("down_proj");
    for (int64_t e = 0; e < stack.size(0); ++e) {
      const std::string expert = fmt::format("{}experts.{}.", name.substr(0, end), e);
      const int64_t width = stack.size(1) / 2;
      if (is_down) {
        tensors[expert + "down_proj.weight"] = stack[e].contiguous();
      } else {
        tensors[expert + "gate_proj.weight"] = stack[e].narrow(0, 0, width).contiguous();
        tensors[expert + "up_proj.weight"] = stack[e].narrow(0, width, width).contiguous();
      }
    }
    tensors.erase(name);
  }
}

// Adds a multi-token-prediction layer like the model's last one, with other numbers.
void add_mtp(Tensors& tensors) {
  const std::string last = "model.language_model.layers.3.";
  const int64_t h = tensors.at("model.language_model.norm.weight").size(0);
  for (const auto& [name, tensor] : Tensors(tensors))
    if (name.starts_with(last)) tensors["mtp.layers.0." + name.substr(last.size())] = tensor + 0.01;
  tensors["mtp.fc.weight"] = at::randn({h, 2 * h});
  for (const char* name : {"norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"})
    tensors[fmt::format("mtp.{}.weight", name)] = at::randn({h});
}

void ask_for_mtp(json& config) { config["text_config"]["mtp_num_hidden_layers"] = 1; }

TEST(MediaFiles, NamesOfBothSpellings) {
  for (const char* name : {"qwen2_vl", "qwen2_5_vl"}) {
    SCOPED_TRACE(name);
    expect_round_trip(golden_folder(name));
    const TempFolder temp;
    write_variant(name, temp / "new", [](Tensors& tensors) {
      Tensors renamed;
      for (const auto& [each, tensor] : tensors) {
        const bool text = each.starts_with("model."), tower = each.starts_with("visual.");
        renamed[text ? "model.language_model." + each.substr(6) : tower ? "model." + each : each] = tensor;
      }
      tensors = renamed;
    });
    expect_round_trip(temp / "new");
    // The old config.json, which has the keys of the text at the top.
    fs::copy_file(golden_folder(name) / "config_classic.json", temp / "new" / "config.json",
                  fs::copy_options::overwrite_existing);
    expect_round_trip(temp / "new");
  }
}

TEST(MediaFiles, ExpertsStackedOrOneByOne) {
  expect_round_trip(golden_folder("qwen3_vl_moe"));
  const TempFolder temp;
  // The form of the published files: transposed.
  write_variant("qwen3_vl_moe", temp / "transposed", [](Tensors& tensors) {
    for (auto& [name, tensor] : tensors)
      if (name.find(".experts.") != std::string::npos) tensor = tensor.transpose(1, 2).contiguous();
  });
  expect_round_trip(temp / "transposed");
  write_variant("qwen3_5_moe", temp / "each", [](Tensors& tensors) { unstack(tensors, "model."); });
  expect_round_trip(temp / "each");
  // The same model in both forms.
  const TokenBatch batch{at::arange(3, 19, at::kLong), at::arange(3, 19, at::kLong), ops::SequenceLayout::dense(1, 16)};
  const RunResult each = run_layout(temp / "each", batch, {}),
                  stacked = run_layout(golden_folder("qwen3_5_moe"), batch, {});
  expect_identical(each.logits, stacked.logits, "logits");
  expect_identical(run_layout(temp / "transposed", batch, {}).logits,
                   run_layout(golden_folder("qwen3_vl_moe"), batch, {}).logits, "logits of transposed experts");
}

TEST(MediaFiles, ExpertsOfPredictionLayersInEitherForm) {
  const TempFolder temp;
  write_variant("qwen3_5_moe", temp / "stacked", add_mtp, ask_for_mtp);
  EXPECT_EQ(model::read_pretrained_config(temp / "stacked").mtp_layers, 1);
  expect_round_trip(temp / "stacked");
  const auto apart = [](Tensors& tensors) {
    add_mtp(tensors);
    unstack(tensors, "mtp.");
  };
  write_variant("qwen3_5_moe", temp / "apart", apart, ask_for_mtp);
  expect_round_trip(temp / "apart");
  const auto text_apart = [](Tensors& tensors) {
    add_mtp(tensors);
    unstack(tensors, "model.");
  };
  write_variant("qwen3_5_moe", temp / "text", text_apart, ask_for_mtp);
  expect_round_trip(temp / "text");
  write_variant("qwen3_5", temp / "dense", add_mtp, ask_for_mtp);
  expect_round_trip(temp / "dense");
}

// Whatever stands there, of any type: nobody here knows it.
TEST(MediaFiles, PartsThatSpeakAreCarriedThrough) {
  const TempFolder temp;
  write_variant("qwen3_omni_moe", temp / "in", [](Tensors& tensors) {
    tensors["talker.model.layers.0.mlp.experts.0.up_proj.weight"] = at::randn({3, 4}).to(at::kBFloat16);
    tensors["code2wav.codebook"] = at::arange(7, at::kLong);
    tensors["talker.scale"] = at::tensor(2.5);
  });
  expect_round_trip(temp / "in");
}

TEST(MediaFiles, OtherTensorsAreStillRefused) {
  const TempFolder temp;
  write_variant("qwen3_5", temp / "in", [](Tensors& tensors) {
    tensors["model.language_model.layers.9.mlp.up_proj.weight"] = at::zeros({1});
    tensors["visual.patch"] = at::zeros({1});
  });
  try {
    model::check_weight_files(temp / "in");
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    expect_contains(error.what(), "model.language_model.layers.9.mlp.up_proj.weight");
    expect_contains(error.what(), "visual.patch");
  }
}

TEST(MediaFiles, ChangesGoToTheirPlaceInConfigJson) {
  for (const std::string& name : supported_media_models()) {
    SCOPED_TRACE(name);
    const TempFolder temp;
    const ModelCase grown{.change = [](model::ModelConfig& config) { config.vocab_size += 3; }};
    run_model(golden_folder(name), grown, [&](const Rank&, model::VirtualModels& models) {
      model::save_pretrained(models, temp / "out", {.dtype = at::kBFloat16});
    });
    json expected = json_file(golden_folder(name) / "config.json");
    json& whole = expected.contains("thinker_config") ? expected["thinker_config"] : expected;
    whole["text_config"]["vocab_size"] = whole["text_config"]["vocab_size"].get<int64_t>() + 3;
    const std::function<void(json&)> cast = [&](json& part) {
      for (auto& [key, value] : part.items()) {
        if (key == "dtype" && value.is_string()) value = "bfloat16";
        if (value.is_object()) cast(value);
      }
    };
    cast(expected);
    EXPECT_EQ(json_file(temp / "out" / "config.json"), expected);
    // The tensors of the towers have the type that config.json now promises.
    const hf::WeightFiles files(temp / "out");
    for (const std::string& tensor : files.names()) EXPECT_EQ(files.find(tensor)->dtype, hf::Dtype::kBF16) << tensor;
    const model::ModelConfig again = model::read_model_config(temp / "out");
    EXPECT_EQ(again.vocab_size, model::read_model_config(golden_folder(name)).vocab_size + 3);
    const json generation = json_file(temp / "out" / "generation_config.json");
    EXPECT_EQ(generation.at("eos_token_id"), 2);
  }
}

TEST(MediaFiles, OldFlatConfigKeepsItsForm) {
  const TempFolder temp;
  write_variant("qwen2_5_vl", temp / "in", {});
  fs::copy_file(golden_folder("qwen2_5_vl") / "config_classic.json", temp / "in" / "config.json",
                fs::copy_options::overwrite_existing);
  const ModelCase grown{.change = [](model::ModelConfig& config) { config.vocab_size += 3; }};
  run_model(temp / "in", grown,
            [&](const Rank&, model::VirtualModels& models) { model::save_pretrained(models, temp / "out", {}); });
  json expected = json_file(temp / "in" / "config.json");
  expected["vocab_size"] = expected["vocab_size"].get<int64_t>() + 3;
  EXPECT_EQ(json_file(temp / "out" / "config.json"), expected);
}

TEST(MediaFiles, WrongKeysAreNamed) {
  const auto error_of = [](const std::string& name, const std::function<void(json&)>& change) {
    json config = golden_json("hf/" + name + "/config.json");
    change(config);
    try {
      model::read_model_config(io::parse_json_file(config.dump(), "config.json"));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  expect_contains(error_of("qwen3_5", [](json& c) { c.erase("text_config"); }), "\"text_config\"");
  expect_contains(error_of("qwen3_5", [](json& c) { c["text_config"]["hidden_size"] = "x"; }),
                  "\"text_config.hidden_size\"");
  expect_contains(error_of("qwen3_5", [](json& c) { c["text_config"]["num_hidden_layers"] = 1'000'000'000; }),
                  "num_hidden_layers");
  expect_contains(error_of("qwen3_5", [](json& c) { c["quantization_config"] = json::object(); }), "quantized");
  expect_contains(error_of("qwen3_vl",
                           [](json& c) {
                             c["text_config"]["rope_parameters"]["mrope_section"] = {4, 4, 4};
                           }),
                  "mrope_section is [4, 4, 4]");
  expect_contains(error_of("qwen3_vl", [](json& c) { c["text_config"]["rope_parameters"].erase("mrope_section"); }),
                  "mrope_section");
  expect_contains(error_of("qwen3_omni_moe", [](json& c) { c.erase("thinker_config"); }), "\"thinker_config\"");
}

}  // namespace
}  // namespace megalith::testing
