// transformers keeps no number of labels: it is the size of id2label, or 2 if a file has none.
#include "megalith/model/families/scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/model/families/family.h"
#include "megalith/model/families/value_head.h"

namespace megalith::model {

namespace {

constexpr std::string_view kForTokens = "ForCausalLM", kForSequences = "ForSequenceClassification";
constexpr int64_t kLabelsByDefault = 2;  // the default in transformers

// The families with such a model in transformers 5 whose weights have the names that our files give them.
constexpr std::array kScoringFamilies{"deepseek_v3", "llama", "mistral",   "mixtral",    "qwen2",
                                      "qwen2_moe",   "qwen3", "qwen3_moe", "qwen3_next", "seed_oss"};

void check_family(const ModelConfig& config) {
  const std::vector<std::string> known(kScoringFamilies.begin(), kScoringFamilies.end());
  const bool own = config.own_family && !config.own_family->head && !config.vision && !config.audio;
  check<ConfigError>(own || std::ranges::find(known, config.family) != known.end(),
                     "{} models cannot score sequences here: transformers has no such model that reads text, or names"
                     " its weights otherwise. Use one of {}",
                     config.family, list_in_words(known, known.size()));
}

// "LlamaForCausalLM" -> "LlamaForSequenceClassification".
std::string architecture_of(const ModelConfig& config) {
  std::string name = family_of(config).architecture;
  if (name.ends_with(kForTokens)) name.resize(name.size() - kForTokens.size());
  return name + std::string(kForSequences);
}

int64_t labels_in(const io::JsonFields& json) {
  if (const auto names = json.optional_object("id2label")) return std::ssize(names->whole());
  return json.optional_positive<int64_t>("num_labels").value_or(kLabelsByDefault);
}

}  // namespace

void read_scores(const io::JsonFields& json, ModelConfig& config) {
  const auto architectures = json.optional<std::vector<std::string>>("architectures");
  if (!architectures || architectures->empty() || !architectures->front().ends_with(kForSequences)) return;
  check_family(config);
  config.num_labels = labels_in(json);
  if (config.num_labels < 1) json.refuse("id2label", "have an entry for each label of the model");
  config.problem_type = json.optional<std::string>("problem_type").value_or("");
  // There is no head that could share the embedding's weight, whatever the file says, nor one to predict tokens.
  config.tied_embeddings = false;
  config.mtp_layers = 0;
}

ModelConfig with_scores(ModelConfig config, const ScoreOverride& scores) {
  if (config.num_labels == 0) {
    check_family(config);
    check<ConfigError>(scores.num_labels.has_value(),
                       "num_labels is missing: the model predicts tokens, so how many scores its new head has must be"
                       " given; set it to the number of classes, or to 1 for a number");
    config.num_labels = *scores.num_labels;
    config.tied_embeddings = false;
    config.mtp_layers = 0;
    if (config.num_labels == 1 && has_value_head(config.folder))
      config = with_score_bias(std::move(config), read_value_head(config.folder, config.hidden_size).bias);
  }
  check<ConfigError>(!scores.num_labels || *scores.num_labels == config.num_labels,
                     "num_labels is {}, but the head in the model's files has {}; leave it out, or start from the"
                     " language model",
                     scores.num_labels.value_or(0), config.num_labels);
  if (!scores.problem_type.empty()) config.problem_type = scores.problem_type;
  if (!scores.pad_token || !config.source) return config;
  io::Json json = *config.source;
  json["pad_token_id"] = *scores.pad_token;
  config.source = std::make_shared<const io::Json>(std::move(json));
  return config;
}

void write_scores(const ModelConfig& config, io::Json& json) {
  if (config.num_labels == 0) return;
  json["architectures"] = {architecture_of(config)};
  const bool named =
      json.contains("id2label") && json["id2label"].is_object() && std::ssize(json["id2label"]) == config.num_labels;
  if (!named) {
    io::Json names = io::Json::object(), numbers = io::Json::object();
    for (int64_t label = 0; label < config.num_labels; ++label) {
      const std::string name = fmt::format("LABEL_{}", label);
      names[std::to_string(label)] = name;
      numbers[name] = label;
    }
    json["id2label"] = std::move(names);
    json["label2id"] = std::move(numbers);
  }
  if (json.contains("num_labels")) json["num_labels"] = config.num_labels;
  if (!config.problem_type.empty()) json["problem_type"] = config.problem_type;
}

}  // namespace megalith::model
