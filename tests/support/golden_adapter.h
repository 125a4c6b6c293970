// The golden adapters: LoRA on the golden models, in peft's files, beside what Hugging Face's libraries compute with
// them. What every field means is said in golden/hf/README.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace megalith::testing {

struct GoldenAdapter {
  std::string name;
  std::filesystem::path folder;  // holds the adapter
  std::string base;              // name of a golden model
  nlohmann::json json;           // golden.json

  at::Tensor input_ids, attention_mask, labels;  // int64 [b, s]
  at::Tensor logits, merged_logits;              // [8, v]; merged_logits may be absent
  at::Tensor token_losses;                       // [b, s]
  double logits_noise = 0;                       // between the adapter and its merged form

  struct Gradient {
    std::string name;  // the file's
    double l2 = 0, sum = 0;
    at::Tensor samples;
  };
  std::vector<Gradient> gradients;

  int64_t label_tokens() const;  // that have a loss
  // Sets of modules whose A is one tensor there: such an A's gradient is their sum, under the first one's name.
  std::vector<std::vector<std::string>> shared_a() const;
};

// All folders in golden_dir()/hf/lora, by name.
std::vector<std::string> golden_adapter_names();
GoldenAdapter read_golden_adapter(const std::string& name);

}  // namespace megalith::testing
