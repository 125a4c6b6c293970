// AdapterConfig: the description of an adapter, adapter_config.json of Hugging Face's peft. Only LoRA is supported.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "megalith/io/json_text.h"

namespace megalith::peft {

// The files of an adapter's folder.
inline constexpr const char* kConfigName = "adapter_config.json";
inline constexpr const char* kWeightsStem = "adapter_model";  // .safetensors

// The update of a weight W [o, i] is scale()·B·A with B [o, rank] and A [rank, i].
struct AdapterConfig {
  // LLaMA-Factory's defaults; its alpha is twice the rank.
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  bool use_rslora = false;                   // rank-stabilized: divide alpha by the root of the rank
  std::vector<std::string> target_modules;   // names of modules, or their ends: "q_proj"; "all-linear" for all
  std::vector<std::string> modules_to_save;  // trained and written as a whole: "embed_tokens"
  // Kept for files; they do not change the computation.
  std::string base_model;                  // base_model_name_or_path
  std::shared_ptr<const io::Json> source;  // the JSON that it was read from; nullptr for a new adapter

  // Returns s of W + s·B·A: alpha/r, or alpha/√r with use_rslora.
  double scale() const;
};

// Reads adapter_config.json. Throws DataError for a folder without one and for fields of the wrong type; ConfigError
// for methods other than LoRA and for variants that are not supported (DoRA, ranks per module, …), naming all of them.
AdapterConfig read_adapter_config(const std::filesystem::path& folder);
// Returns the text of the file: the JSON that the configuration was read from, updated, or a new one with peft's
// defaults.
std::string to_json(const AdapterConfig& config);

}  // namespace megalith::peft
