// Two models are compared by their tensors, since those decide whether weights fit; sizes that users know by name only
// explain the difference. Values are checked by the ranks that read them, and the findings of all ranks are joined, so
// that every rank throws the same error.
#include "megalith/model/weight_check.h"

#include <fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/hf/weight_files.h"
#include "megalith/model/pretrained.h"

namespace megalith::model {

namespace {

namespace fs = std::filesystem;

// Shapes by name, without what two save points of one run may differ in.
std::map<std::string, std::vector<int64_t>> fixed_tensors(const ModelConfig& config) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const hf::GlobalTensor& tensor : global_tensors(config)) {
    if (tensor.name.starts_with("mtp.")) continue;
    std::vector<int64_t> shape = tensor.shape;
    if (has_vocabulary_rows(tensor.name, config)) shape[0] = 0;
    shapes.emplace(tensor.name, std::move(shape));
  }
  return shapes;
}

// Returns the differences of two configurations that users know by their names in config.json.
std::vector<std::string> different_sizes(const ModelConfig& there, const ModelConfig& here) {
  std::vector<std::string> found;
  const auto compare = [&](const char* name, const auto& a, const auto& b) {
    if (a != b) found.push_back(fmt::format("{} is {} there and {} here", name, a, b));
  };
  compare("model_type", there.family, here.family);
  compare("num_hidden_layers", there.num_layers, here.num_layers);
  compare("hidden_size", there.hidden_size, here.hidden_size);
  compare("num_attention_heads", there.num_heads, here.num_heads);
  compare("num_key_value_heads", there.num_kv_heads, here.num_kv_heads);
  compare("intermediate_size", there.mlp_width, here.mlp_width);
  compare("number of experts", there.moe ? there.moe->router.experts : 0, here.moe ? here.moe->router.experts : 0);
  return found;
}

// Returns the tensors that only one of the models has, or that have another shape.
std::vector<std::string> different_tensors(const ModelConfig& there, const ModelConfig& here) {
  const auto stored = fixed_tensors(there), wanted = fixed_tensors(here);
  std::vector<std::string> found;
  for (const auto& [name, shape] : wanted) {
    const auto same = stored.find(name);
    if (same == stored.end())
      found.push_back(fmt::format("{} is missing there", name));
    else if (same->second != shape)
      found.push_back(
          fmt::format("{} is [{}] there and [{}] here", name, fmt::join(same->second, ", "), fmt::join(shape, ", ")));
  }
  for (const auto& [name, shape] : stored)
    if (!wanted.contains(name)) found.push_back(fmt::format("{} is only there", name));
  return found;
}

// JSON, so that ranks can exchange their findings as text.
std::string findings_text(const std::vector<hf::NonFiniteValues>& found) {
  nlohmann::json list = nlohmann::json::array();
  for (const hf::NonFiniteValues& each : found)
    list.push_back({each.tensor, each.file, each.offset, each.count, each.too_large_for});
  return list.dump();
}

}  // namespace

TowerChoice towers_of(const ModelConfig& config) {
  return {.vision = config.vision.has_value(), .audio = config.audio.has_value()};
}

void require_towers(const TowerChoice& needed, const fs::path& folder, const std::shared_ptr<const Family>& own) {
  const ModelConfig described = read_model_config(folder, own), stored = read_pretrained_config(folder, own);
  const auto require = [&](bool wanted, bool described_too, bool has, const char* tower, const char* media) {
    check<DataError>(!wanted || !described_too || has,
                     "config.json in {} describes {}, but the files have no tensor of it: the model comes from a run"
                     " from scratch whose data had no {}. Take a model whose files have the tower, or leave out the {}",
                     folder.string(), tower, media, media);
  };
  require(needed.vision, described.vision.has_value(), stored.vision.has_value(), "a vision tower", "images");
  require(needed.audio, described.audio.has_value(), stored.audio.has_value(), "an audio tower", "sounds");
}

void check_weight_files(const fs::path& folder, const TowerChoice& needed, const std::shared_ptr<const Family>& own) {
  require_towers(needed, folder, own);
  const ModelConfig config = read_pretrained_config(folder, own);
  hf::TensorMapping(name_map(config), global_tensors(config)).check_files(hf::WeightFiles(folder));
}

void check_same_model(const fs::path& checkpoint, const ModelConfig& config) {
  // Towers that a run does not use are in its checkpoints where they were in its model's files.
  const ModelConfig there = with_towers(read_model_config(checkpoint, config.own_family), towers_of(config));
  const std::vector<std::string> tensors = different_tensors(there, config);
  if (tensors.empty()) return;
  std::vector<std::string> found = different_sizes(there, config);
  found.push_back(fmt::format("{} {}, such as: {}", tensors.size(),
                              tensors.size() == 1 ? "tensor differs" : "tensors differ", tensors.front()));
  throw DataError(
      fmt::format("the checkpoint {} is of another model: {}. Give a checkpoint of this model, or start from that one"
                  " with model_name_or_path",
                  checkpoint.string(), fmt::join(found, "; ")));
}

void require_finite(const std::vector<hf::NonFiniteValues>& found, const fs::path& folder,
                    const parallel::ParallelContext& context) {
  struct Total {
    std::string file, too_large_for;
    int64_t count = 0;
  };
  std::map<std::string, Total> totals;                                // by tensor
  std::set<std::pair<std::string, std::vector<int64_t>>> rectangles;  // replicas have the same
  for (const std::string& text :
       context.world().world().all_gather_bytes(findings_text(found), "values of the weights"))
    for (const auto& each : nlohmann::json::parse(text)) {
      const auto tensor = each.at(0).get<std::string>();
      if (!rectangles.emplace(tensor, each.at(2).get<std::vector<int64_t>>()).second) continue;
      Total& total = totals[tensor];
      total.file = each.at(1).get<std::string>();
      total.too_large_for = each.at(4).get<std::string>();
      total.count += each.at(3).get<int64_t>();
    }
  if (totals.empty()) return;
  std::vector<std::string> tensors;
  for (const auto& [tensor, total] : totals)
    tensors.push_back(fmt::format("{} in {} ({} {}{})", tensor, total.file, total.count,
                                  total.count == 1 ? "value" : "values",
                                  total.too_large_for.empty() ? "" : " too large for " + total.too_large_for));
  throw DataError(
      fmt::format("the weights in {} hold NaN or infinities: {}. Such a model can neither be trained nor used; take"
                  " another copy of it, or a checkpoint from before they arose",
                  folder.string(), list_in_words(tensors, 8)));
}

}  // namespace megalith::model
