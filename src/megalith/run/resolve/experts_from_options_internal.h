// Models with experts from Megatron's options; see model_from_options.h.
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

// Which layers have experts: "2" every second one from the first on, or a list such as ([1]*3+[0]*2). Throws
// ConfigError for another text, or a list of another length.
std::vector<bool> parse_layer_freq(const std::string& text, int64_t layers);

// What no family holds together, each with what would go with the others; needs num_experts.
std::vector<std::string> expert_problems(const config::TrainingArguments& args);
// config.json of a dense model turned into that of the family with experts.
void add_experts(io::Json& json, const config::TrainingArguments& args);

}  // namespace megalith::run
