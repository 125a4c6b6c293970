// AdapterConfig: what an adapter is: adapter_config.json of Hugging Face's peft, as far as LoRA goes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "megalith/io/json_text.h"

namespace megalith::peft {

inline constexpr const char* kConfigName = "adapter_config.json";
inline constexpr const char* kWeightsStem = "adapter_model";  // .safetensors

struct AdapterConfig {
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  bool use_rslora = false;                   // scale by the root of the rank
  std::vector<std::string> target_modules;   // names of modules, or ends of them: "q_proj"; "all-linear" for all
  std::vector<std::string> modules_to_save;  // trained and written as a whole: "embed_tokens"
  std::string base_model;                    // base_model_name_or_path
  std::shared_ptr<const io::Json> source;    // what it was read from; nullptr: nothing

  // s of W + s·B·A: alpha/r, or alpha/√r.
  double scale() const;
};

// Throws DataError for a folder without one, naming what is there, and for fields of another type; ConfigError for
// other methods than LoRA and for variants of it that are not supported (DoRA, ranks by module, …), all of them named.
AdapterConfig read_adapter_config(const std::filesystem::path& folder);
// The file's text: what it was read from with what has changed, or a new one with peft's defaults.
std::string to_json(const AdapterConfig& config);

}  // namespace megalith::peft
