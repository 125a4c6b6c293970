// Families: what each kind of model is, as data. A family says how its config.json comes to a ModelConfig and how its
// files name the tensors; layers and the model itself are shared. Where the library has no fitting part, a family
// brings its own.
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

namespace megalith::nn {
class ParameterScope;
}

namespace megalith::model {

class Head;
class PartKind;
struct HeadSite;

struct Family {
  std::string model_type;    // "llama", as config.json says
  std::string architecture;  // "LlamaForCausalLM"
  ModelConfig (*read)(const io::JsonFields& config);
  hf::NameMap names;
  // How its files name multi-token-prediction layers; nullptr: the family has none.
  void (*add_mtp_names)(const ModelConfig& config, hf::NameMap& names) = nullptr;

  // Parts of its own (part_kind.h), layer by layer; nullptr from such a function, and an empty one: the library's.
  // Their parameters are layers.N.attention.* and layers.N.mlp.*; `names` has rules for them.
  using MakePart = std::function<std::unique_ptr<PartKind>(const ModelConfig& config, int64_t layer)>;
  MakePart attention = {};
  MakePart feed_forward = {};
  // A head of its own (head.h) in place of final norm, projection to the vocabulary and loss; empty: the library's. Its
  // parameters are head.*.
  std::function<std::unique_ptr<Head>(const nn::ParameterScope& scope, const HeadSite& site)> head = {};
};

// All supported families, by name.
const std::vector<Family>& families();
// Throws ConfigError naming the supported ones.
const Family& family(std::string_view model_type);
// That of a model: the program's own, or the one of its name. find_family gives nullptr where there is none, which is
// so for configurations that were not read from a file; family_of throws as `family` does.
const Family* find_family(const ModelConfig& config);
const Family& family_of(const ModelConfig& config);

// The configuration of the model in a folder, or in a config.json. `own`: a family of the program's own, for files of
// its model_type; it goes with the model, into checkpoints and exports. Throws DataError (wrong fields, all of them
// named) or ConfigError (a family or a feature that is not supported).
ModelConfig read_model_config(const std::filesystem::path& folder, const std::shared_ptr<const Family>& own = {});
ModelConfig read_model_config(const io::JsonFile& config, const std::shared_ptr<const Family>& own = {});

// The tensor names of a model: its family's, without the head where that is tied.
hf::NameMap name_map(const ModelConfig& config);

}  // namespace megalith::model
