#include "tests/support/golden_model.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/hf/safetensors_file.h"
#include "tests/support/golden.h"

namespace megalith::testing {

namespace {

namespace fs = std::filesystem;

fs::path models_dir() { return golden_dir() / "hf"; }

// A tensor that a test needs.
at::Tensor golden_tensor(const hf::SafetensorsFile& file, const std::string& name) {
  if (!file.find(name)) skip_without_golden(name + " in " + file.path().string());
  return file.tensor(name);
}

GoldenModel::Packed read_packed(const hf::SafetensorsFile& file, const nlohmann::json& json) {
  GoldenModel::Packed packed;
  if (!json.is_object() || !file.find("packed.input_ids")) return packed;
  packed.input_ids = file.tensor("packed.input_ids");
  if (file.find("packed.position_ids")) packed.position_ids = file.tensor("packed.position_ids");
  packed.labels = file.tensor("packed.labels");
  packed.token_losses = file.tensor("packed.token_losses");
  const at::Tensor cumulative = file.tensor("packed.cu_seqlens").to(at::kLong).contiguous();
  const auto* first = cumulative.const_data_ptr<int64_t>();
  packed.cu_seqlens.assign(first, first + cumulative.numel());
  packed.loss = json.at("loss").get<double>();
  packed.num_label_tokens = json.at("num_label_tokens").get<int64_t>();
  packed.grad_norm = golden_member(json, "grad_norm").get<double>();
  return packed;
}

GoldenModel::Gradient read_gradient(const std::string& name, const nlohmann::json& entry,
                                    const hf::SafetensorsFile& file, const nlohmann::json& packed_l2) {
  GoldenModel::Gradient gradient;
  gradient.name = name;
  gradient.shape = entry.at("shape").get<std::vector<int64_t>>();
  gradient.l2 = entry.at("grad_l2").get<double>();
  gradient.sum = entry.at("grad_sum").get<double>();
  gradient.absmax = entry.at("grad_absmax").get<double>();
  gradient.noise = golden_number(entry, "grad_noise");
  gradient.samples = golden_tensor(file, "grad." + name);
  if (has_golden(packed_l2, name)) gradient.packed_l2 = packed_l2.at(name).get<double>();
  return gradient;
}

}  // namespace

namespace {

std::vector<std::string> names_of_folders(bool media) {
  std::vector<std::string> names;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(models_dir(), missing)) {
    const std::string name = entry.path().filename().string();
    if (fs::exists(entry.path() / "golden.json") && fs::exists(entry.path() / "config.json") &&
        golden_json("hf/" + name + "/golden.json").contains("media") == media)
      names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

std::vector<std::string> golden_model_names() { return names_of_folders(/*media=*/false); }
std::vector<std::string> golden_media_names() { return names_of_folders(/*media=*/true); }

std::string golden_model_type(const std::string& name) {
  if (name == kNoGolden) skip_without_golden("model folder (hf/*/golden.json beside config.json)");
  return golden_json("hf/" + name + "/config.json").at("model_type").get<std::string>();
}

GoldenModel read_golden_model(const std::string& name) {
  GoldenModel model;
  model.name = name;
  model.folder = models_dir() / name;
  model.json = golden_json("hf/" + name + "/golden.json");
  model.model_type = golden_model_type(name);
  if (!fs::exists(model.folder / "golden.safetensors")) skip_without_golden("hf/" + name + "/golden.safetensors");
  const hf::SafetensorsFile file(model.folder / "golden.safetensors");
  model.input_ids = golden_tensor(file, "input_ids");
  model.attention_mask = file.find("attention_mask") ? file.tensor("attention_mask") : at::ones_like(model.input_ids);
  model.labels = golden_tensor(file, "labels");
  model.logits = golden_tensor(file, "logits");
  if (file.find("hidden_states")) model.hidden_states = file.tensor("hidden_states");
  model.token_losses = golden_tensor(file, "token_losses");
  model.loss = golden_member(model.json, "loss").get<double>();
  model.num_label_tokens = golden_member(model.json, "num_label_tokens").get<int64_t>();
  model.grad_norm = golden_member(model.json, "grad_norm").get<double>();
  const nlohmann::json noise = model.json.value("noise", nlohmann::json());
  model.logits_noise = golden_number(noise, "logits_eager_vs_sdpa");
  const nlohmann::json packed = model.json.value("packed", nlohmann::json());
  model.packed = read_packed(file, packed);
  const nlohmann::json packed_l2 = packed.is_object() ? packed.value("grad_l2", nlohmann::json()) : packed;
  for (const auto& [tensor, entry] : golden_member(model.json, "params").items())
    model.gradients.push_back(read_gradient(tensor, entry, file, packed_l2));
  return model;
}

const GoldenModel::Packed& GoldenModel::packed_row() const {
  if (!packed.input_ids.defined()) skip_without_golden("packed row of " + name);
  return packed;
}

at::Tensor golden_sample(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous().view(-1);
  const at::Tensor places =
      at::arange(std::min<int64_t>(32, flat.numel()), at::kLong).mul(7919).remainder(flat.numel());
  return flat.index_select(0, places);
}

}  // namespace megalith::testing
