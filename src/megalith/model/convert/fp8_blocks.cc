// Our names, which are the same for all families, decide: a tensor of the files is in fp8 when it holds one of the
// projections below.
#include "megalith/model/convert/fp8_blocks.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <set>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/io/json_text.h"
#include "megalith/model/families/family.h"

namespace megalith::model {

namespace {

constexpr std::string_view kWeight = ".weight";

// "layers.3.mlp.experts.1.up.weight" and others like it.
bool is_projection(const std::string& ours) {
  static constexpr std::array<std::string_view, 12> kKinds{"q",       "k",     "v",    "o",  "q_down", "q_up",
                                                           "kv_down", "kv_up", "gate", "up", "down",   "out"};
  if (!ours.starts_with("layers.") && !ours.starts_with("mtp.")) return false;
  const std::vector<std::string> words = split(ours, '.');
  return words.size() >= 4 && words.back() == "weight" &&
         std::ranges::find(kKinds, words[words.size() - 2]) != kKinds.end();
}

bool is_embedding(const std::string& ours) { return ours == "embedding.weight" || ours == "position_embedding.weight"; }

}  // namespace

std::unordered_set<std::string> fp8_block_names(const ModelConfig& config, const std::vector<hf::GlobalTensor>& tensors,
                                                const hf::TensorMapping& mapping) {
  std::unordered_set<std::string> names;
  for (const hf::GlobalTensor& tensor : tensors) {
    if (!is_projection(tensor.name)) continue;
    const hf::FileTensor& file = mapping.file_of(tensor.name);
    check<ConfigError>(!file.transposed,
                       "fp8_blocks writes weights as [out, in], and files of {} models store {} as [in, out]; leave out"
                       " fp8_blocks",
                       config.family, file.name);
    names.insert(file.name);
    names.insert(file.copies.begin(), file.copies.end());
  }
  check<ConfigError>(!names.empty(), "fp8_blocks finds none of the linear layers that it writes in fp8 in {} models",
                     config.family);
  return names;
}

std::string with_fp8_block_config(const std::string& config_json, const ModelConfig& config,
                                  const std::vector<hf::GlobalTensor>& tensors, const hf::TensorMapping& mapping,
                                  const std::unordered_set<std::string>& in_fp8) {
  std::set<std::string> others;  // modules
  for (const hf::GlobalTensor& tensor : tensors) {
    const hf::FileTensor& file = mapping.file_of(tensor.name);
    if (file.shape.size() == 2 && file.name.ends_with(kWeight) && !is_embedding(tensor.name) &&
        !in_fp8.contains(file.name))
      others.insert(file.name.substr(0, file.name.size() - kWeight.size()));
  }
  for (const std::string& pattern : name_map(config).carried)
    if (pattern.ends_with(".*")) others.insert(pattern.substr(0, pattern.size() - 2));
  const hf::ScaleBlock block;
  io::Json json = io::parse_json(config_json, "config.json");
  json["quantization_config"] = {{"activation_scheme", "dynamic"},
                                 {"fmt", "e4m3"},
                                 {"modules_to_not_convert", others},
                                 {"quant_method", "fp8"},
                                 {"weight_block_size", {block.rows, block.columns}}};
  return json.dump(2) + "\n";
}

}  // namespace megalith::model
