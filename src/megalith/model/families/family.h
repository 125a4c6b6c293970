// Families: what each kind of model is, as data. A family says how its config.json comes to a ModelConfig and how its
// files name the tensors; layers and the model itself are shared.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/hf/name_map.h"
#include "megalith/io/json_reader.h"
#include "megalith/model/families/model_config.h"

namespace megalith::model {

struct Family {
  std::string model_type;    // "llama", as config.json says
  std::string architecture;  // "LlamaForCausalLM"
  ModelConfig (*read)(const io::JsonFields& config);
  hf::NameMap names;
  // How its files name multi-token-prediction layers; nullptr: the family has none.
  void (*add_mtp_names)(const ModelConfig& config, hf::NameMap& names) = nullptr;
};

// All supported families, by name.
const std::vector<Family>& families();
// Throws ConfigError naming the supported ones.
const Family& family(std::string_view model_type);
// That of a model: the program's own, or the one of its name.
const Family& family_of(const ModelConfig& config);

// The configuration of the model in a folder, or in a config.json. `own`: a family of the program's own, for files of
// its model_type; it goes with the model, into checkpoints and exports. Throws DataError (wrong fields, all of them
// named) or ConfigError (a family or a feature that is not supported).
ModelConfig read_model_config(const std::filesystem::path& folder, const std::shared_ptr<const Family>& own = {});
ModelConfig read_model_config(const io::JsonFile& config, const std::shared_ptr<const Family>& own = {});

// The tensor names of a model: its family's, without the head where that is tied.
hf::NameMap name_map(const ModelConfig& config);

}  // namespace megalith::model
