// Families: each kind of model as data. A family says how to read its config.json into a ModelConfig and how its files
// name the tensors; layers and the model itself are shared. If the library has no fitting part, a family defines its
// own.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/hf/name_map.h"
#include "megalith/io/json_reader.h"
#include "megalith/model/families/model_config.h"
#include "megalith/model/families/vision.h"

namespace megalith::nn {
class ParameterScope;
}

namespace megalith::model {

class Head;
class PartKind;
struct HeadSite;

// One family of models.
struct Family {
  std::string model_type;    // "llama", as in config.json
  std::string architecture;  // "LlamaForCausalLM"
  // Fills a ModelConfig from config.json. Throws DataError for missing or mistyped keys, ConfigError for features that
  // are not supported.
  ModelConfig (*read)(const io::JsonFields& config);
  // The names of its tensors in checkpoints.
  hf::NameMap names;
  // Adds the names of multi-token-prediction layers in its files; nullptr if the family has none.
  void (*add_mtp_names)(const ModelConfig& config, hf::NameMap& names) = nullptr;
  // The key of config.json that says how many of these layers there are.
  const char* mtp_key = "num_nextn_predict_layers";
  // The spelling of its vision tower, if ModelConfig::vision has one.
  VisionFiles vision_files = VisionFiles::kQwen3;
  // Finds the form of a folder's files (ModelConfig::form) where the family has several; nullptr if it has one.
  void (*read_form)(const hf::WeightFiles& files, ModelConfig& config) = nullptr;

  // Make the family's own parts (part_kind.h) of a layer. An empty function, or one that returns nullptr, selects the
  // library's. Their parameters are layers.N.attention.* and layers.N.mlp.*; `names` needs rules for them.
  using MakePart = std::function<std::unique_ptr<PartKind>(const ModelConfig& config, int64_t layer)>;
  MakePart attention = {};
  MakePart feed_forward = {};
  // Makes the family's own head (head.h), which replaces final norm, projection to the vocabulary and loss; empty to
  // use the library's. Its parameters are head.*.
  std::function<std::unique_ptr<Head>(const nn::ParameterScope& scope, const HeadSite& site)> head = {};
};

// Returns all supported families, sorted by name.
const std::vector<Family>& families();
// Returns the family of that model_type. Throws a ConfigError that names the supported ones.
const Family& family(std::string_view model_type);
// Return the family of a model: the program's own, or the one of its name. If there is none, as for configurations that
// were not read from a file, find_family returns nullptr and family_of throws like `family`.
const Family* find_family(const ModelConfig& config);
const Family& family_of(const ModelConfig& config);

// Read the configuration of the model in a folder, or in a config.json. `own` is a family that the program defines, for
// files of its model_type; it stays with the model in checkpoints and exports. Throw DataError (naming all wrong
// fields) or ConfigError (a family or a feature that is not supported).
ModelConfig read_model_config(const std::filesystem::path& folder, const std::shared_ptr<const Family>& own = {});
ModelConfig read_model_config(const io::JsonFile& config, const std::shared_ptr<const Family>& own = {});

// Returns the tensor names of a model in its files: those of its family, without the head if that is tied, in the form
// of the files (ModelConfig::form).
hf::NameMap name_map(const ModelConfig& config);
// Returns the same tensors under the names of the modules of transformers 5, which adapters name: experts one by one,
// however the files keep them, and the language model and the tower of every model that sees as parts of `model`.
hf::NameMap module_names(const ModelConfig& config);

}  // namespace megalith::model
