// Builds models with experts from Megatron's options; see model_from_options.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/training_arguments.h"
#include "megalith/io/json_text.h"

namespace megalith::run {

// An option that was not given is off.
inline bool on(const std::optional<bool>& flag) { return flag.value_or(false); }

// Returns which layers have experts: for "2" every second layer, beginning with the first, or as a list such as
// ([1]*3+[0]*2) says. Throws ConfigError for any other text and for a list of the wrong length.
std::vector<bool> parse_layer_freq(const std::string& text, int64_t layers);

// Returns every combination of options that no family supports, each with what would fit the others. Needs num_experts.
std::vector<std::string> expert_problems(const config::TrainingArguments& args);
// Turns config.json of a dense model into that of the family with experts.
void add_experts(io::Json& json, const config::TrainingArguments& args);

}  // namespace megalith::run
