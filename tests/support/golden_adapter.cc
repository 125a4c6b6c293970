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
  const auto& shared = json.at("shared_A");
  return shared.is_null() ? std::vector<std::vector<std::string>>{}
                          : shared.get<std::vector<std::vector<std::string>>>();
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
  GoldenAdapter adapter;
  adapter.name = name;
  adapter.folder = golden_dir() / "hf" / "lora" / name;
  adapter.json = golden_json("hf/lora/" + name + "/golden.json");
  adapter.base = adapter.json.at("base").get<std::string>();
  const hf::SafetensorsFile file(adapter.folder / "golden.safetensors");
  adapter.input_ids = file.tensor("input_ids");
  adapter.attention_mask = file.tensor("attention_mask");
  adapter.labels = file.tensor("labels");
  adapter.logits = file.tensor("logits");
  adapter.merged_logits = file.tensor("merged_logits");
  adapter.token_losses = file.tensor("token_losses");
  adapter.logits_noise = adapter.json.at("noise").at("logits_adapter_vs_merged").get<double>();
  for (const auto& [tensor, entry] : adapter.json.at("params").items())
    adapter.gradients.push_back(
        {tensor, entry.at("grad_l2").get<double>(), entry.at("grad_sum").get<double>(), file.tensor("grad." + tensor)});
  return adapter;
}

}  // namespace megalith::testing
