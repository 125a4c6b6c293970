#include <fmt/format.h>

#include "megalith/model/families/decoder_internal.h"

namespace megalith::model {

std::vector<hf::NameRule> mtp_layer_rules(const hf::NameMap& names, const std::string& prefix) {
  constexpr std::string_view kTheirs = "model.layers.{}.", kOurs = "layers.{}.";
  std::vector<hf::NameRule> rules;
  for (hf::NameRule rule : names.rules) {
    if (!rule.theirs.starts_with(kTheirs)) continue;
    rule.theirs = prefix + rule.theirs.substr(kTheirs.size());
    for (std::string& ours : rule.ours) ours = "mtp.{}.layer." + ours.substr(kOurs.size());
    rules.push_back(std::move(rule));
  }
  return rules;
}

void add_numbered_mtp_names(const ModelConfig& config, hf::NameMap& names) {
  const std::string prefix = fmt::format("model.layers.{{+{}}}.", config.num_layers);
  std::vector<hf::NameRule> added = mtp_layer_rules(names, prefix);
  added.push_back({prefix + "enorm.weight", {"mtp.{}.embedding_norm.weight"}});
  added.push_back({prefix + "hnorm.weight", {"mtp.{}.hidden_norm.weight"}});
  added.push_back({prefix + "eh_proj.weight", {"mtp.{}.projection.weight"}});
  added.push_back({prefix + "shared_head.norm.weight", {"mtp.{}.norm.weight"}});
  for (hf::NameRule& rule : names.rules)
    for (int64_t layer = config.num_layers; layer < config.num_layers + config.mtp_layers; ++layer) {
      const std::string& ours = rule.ours[0];
      if (ours == "embedding.weight") rule.copies.push_back(fmt::format("model.layers.{}.embed_tokens.weight", layer));
      if (ours == (config.tied_embeddings ? "embedding.weight" : "head.weight"))
        rule.copies.push_back(fmt::format("model.layers.{}.shared_head.head.weight", layer));
    }
  names.rules.insert(names.rules.end(), added.begin(), added.end());
}

}  // namespace megalith::model
