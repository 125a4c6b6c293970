// Models that score whole sequences: transformers' …ForSequenceClassification. They are the models of a family with a
// linear layer without bias, score.weight [labels, h], in place of the head; a sequence has the scores of its last
// token. With one label the score is a reward, or a number to regress; with several, those of classes.
//
//   config.json  "architectures": ["LlamaForSequenceClassification"], "id2label" with an entry per label,
//                "problem_type" (what the scores mean), "pad_token_id" (transformers scores the last token that is
//                another one)
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "megalith/io/json_reader.h"
#include "megalith/model/families/model_config.h"

namespace megalith::model {

// The names of the head's weight, in the model and in files, and of its module.
inline constexpr const char* kScoreWeight = "score.weight";
inline constexpr const char* kScoreModule = "score";

// Makes a model score sequences, or says what its scores are.
struct ScoreOverride {
  std::optional<int64_t> num_labels;  // nullopt = as many as the files have, whose head must be one for sequences then
  std::string problem_type;           // ModelConfig::problem_type; empty = that of the files
  std::optional<int64_t> pad_token;   // id of the padding in config.json; nullopt = that of the files
};

// Reads the number of labels of a model whose architecture is one for sequences; leaves others as they are.
void read_scores(const io::JsonFields& json, ModelConfig& config);
// Returns the model with a head for sequences in place of that for tokens; idempotent. Throws ConfigError for families
// that transformers knows no such model of, for a number of labels other than that of the files, and if neither gives
// one.
ModelConfig with_scores(ModelConfig config, const ScoreOverride& scores);
// Writes architecture, labels and problem type of such a model into the JSON that becomes its config.json.
void write_scores(const ModelConfig& config, io::Json& json);

}  // namespace megalith::model
