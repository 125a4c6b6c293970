// config.json of a model that options describe; see model_from_options.h.
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

// Returns how many tokens a query sees in each layer, 0 for all, from window_size and window_attn_skip_freq; empty
// without window_size. Throws ConfigError for text that is not a window.
std::vector<int64_t> windows_of(const config::TrainingArguments& args);

// Returns the Hugging Face family that comes closest to the options; it may still lack something they ask for. Empty if
// none is close.
std::string nearest_family(const config::TrainingArguments& args);

// Return the sizes and switches of the model in the keys of one Hugging Face family, and in those of megatron_gpt,
// which expresses all of them. Vocabulary, embeddings and dtype are left to the caller. `args` have passed the checks
// of model_from_options.
io::Json family_json(const config::TrainingArguments& args, const std::string& family);
io::Json megatron_gpt_json(const config::TrainingArguments& args);

// Models with experts (experts_from_options.cc).

// Returns the Hugging Face family without latent attention whose experts and router come closest to the options; it may
// still differ. Needs num_experts.
const char* nearest_expert_family(const config::TrainingArguments& args);

// Returns what no model with experts can have, each with the change that makes it fit. Needs num_experts.
std::vector<std::string> expert_problems(const config::TrainingArguments& args);
// Adds the experts to the config.json of a model, in the keys of its family ("model_type").
void add_experts(io::Json& json, const config::TrainingArguments& args);

}  // namespace megalith::run
