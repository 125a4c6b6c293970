// The value head of trl, which LLaMA-Factory writes beside a reward model, or beside the adapter of one:
//
//   value_head.safetensors   v_head.summary.weight [1, h], v_head.summary.bias [1]
//   value_head.bin           the same as a pickle
//
// It takes the output of the final norm, as the head of scores.h does, and differs from it in two ways. It has a bias:
// a constant here, since pairs do not train it (it cancels in the difference of two rewards). And the score of a text
// is that of its last token, even if that equals the padding. "score_bias" in config.json or adapter_config.json marks
// such a model in our files; the weight is score.weight there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "megalith/model/families/model_config.h"
#include "megalith/nn/parameter/parameter.h"

namespace megalith::model {

// The key in config.json and adapter_config.json.
inline constexpr const char* kScoreBias = "score_bias";

// A value head as its file has it.
struct ValueHead {
  at::Tensor weight;  // fp32 [1, h], on the host
  double bias = 0;
};

// Whether a folder holds a value head.
bool has_value_head(const std::filesystem::path& folder);
// Reads the value head of a folder. Throws DataError for a file that is not one of models of width `hidden`.
ValueHead read_value_head(const std::filesystem::path& folder, int64_t hidden);
// Copies the value head of a folder, as it is.
void copy_value_head(const std::filesystem::path& from, const std::filesystem::path& to);
// Fills a parameter of a model from the value head of a folder, if it is score.weight.
void fill_from_value_head(const nn::Parameter& parameter, const std::filesystem::path& folder);

// Returns the bias of a model with a value head; std::nullopt for all others.
std::optional<double> score_bias(const ModelConfig& config);
// Returns the configuration of a model that scores sequences with that bias, or without one.
ModelConfig with_score_bias(ModelConfig config, std::optional<double> bias);

}  // namespace megalith::model
