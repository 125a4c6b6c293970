#include "tests/support/golden_adapter.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "megalith/hf/safetensors_file.h"
#include "tests/support/golden.h"

namespace megalith::testing {

namespace fs = std::filesystem;

int64_t GoldenAdapter::label_tokens() const {  // position 0 predicts nothing that stands before it
  return labels.narrow(1, 1, labels.size(1) - 1).ne(-100).sum().item<int64_t>();
}

std::vector<std::vector<std::string>> GoldenAdapter::shared_a() const {
  if (!has_golden(json, "shared_A")) return {};
  return json.at("shared_A").get<std::vector<std::vector<std::string>>>();
}

std::vector<std::string> golden_adapter_names() {
  std::vector<std::string> names;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(golden_dir() / "hf" / "lora", missing))
    if (fs::exists(entry.path() / "golden.json")) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

GoldenAdapter read_golden_adapter(const std::string& name) {
  if (name == kNoGolden) skip_without_golden("adapter (hf/lora/*/golden.json)");
  GoldenAdapter adapter;
  adapter.name = name;
  adapter.folder = golden_dir() / "hf" / "lora" / name;
  adapter.json = golden_json("hf/lora/" + name + "/golden.json");
  adapter.base = golden_member(adapter.json, "base").get<std::string>();
  const hf::SafetensorsFile file(adapter.folder / "golden.safetensors");
  adapter.input_ids = file.tensor("input_ids");
  adapter.attention_mask =
      file.find("attention_mask") ? file.tensor("attention_mask") : at::ones_like(adapter.input_ids);
  adapter.labels = file.tensor("labels");
  adapter.logits = file.tensor("logits");
  if (file.find("merged_logits")) adapter.merged_logits = file.tensor("merged_logits");
  adapter.token_losses = file.tensor("token_losses");
  const nlohmann::json noise = adapter.json.value("noise", nlohmann::json());
  adapter.logits_noise = golden_number(noise, "logits_adapter_vs_merged");
  for (const auto& [tensor, entry] : golden_member(adapter.json, "params").items())
    adapter.gradients.push_back(
        {tensor, entry.at("grad_l2").get<double>(), entry.at("grad_sum").get<double>(), file.tensor("grad." + tensor)});
  return adapter;
}

}  // namespace megalith::testing
