// Prompts: how texts and messages become the ids that a model continues; and those of a run that writes samples of its
// texts (generate_samples_every).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "megalith/data/dataset.h"
#include "megalith/tokenizer/chat/chat_template.h"
#include "megalith/tokenizer/tokenizer.h"
#include "megalith/train/samples/text_sampler.h"

namespace megalith::run {

// Returns the ids of a text with the special tokens that the tokenizer adds (BOS); BOS alone for an empty text.
std::vector<int64_t> encode_prompt(const tokenizer::Tokenizer& tokenizer, const std::string& text);
// Returns the ids of a text as a user's message, or of a whole list of messages, as the template writes them.
std::vector<int64_t> encode_chat(const tokenizer::Tokenizer& tokenizer, const tokenizer::ChatTemplate& chat,
                                 const nlohmann::ordered_json& given);

// When a run writes samples, and from which prompts.
struct SampleSettings {
  int64_t every = 0;  // steps; 0: never
  int64_t max_new_tokens = 64;
  std::filesystem::path prompts{};  // a file with one per line; if empty, the run takes beginnings of its samples
};

// The tokenizer of a run and the folder of its files, which may have a chat template. Both absent if the run has none.
struct TextTools {
  std::optional<tokenizer::Tokenizer> tokenizer;
  std::filesystem::path folder;
};

// Returns the prompts of a file. A line is a text, a JSON string (for texts of several lines) or a JSON list of
// messages; empty lines are passed over. Throws ConfigError or DataError with the line that is wrong.
std::vector<train::Prompt> read_prompts(const std::filesystem::path& file, const TextTools& tools);

// Throws ConfigError or DataError if a run with these settings could not write samples: it has no tokenizer, or the
// file of prompts is not one.
void check_samples(const SampleSettings& settings, const TextTools& tools);

// Returns the sampler of a run; nullptr if it writes no samples. `dataset` gives prompts where settings name none.
// Throws like check_samples, and ConfigError if there is no source of prompts (a stream without evaluation data).
std::shared_ptr<const train::TextSampler> make_text_sampler(const SampleSettings& settings, const TextTools& tools,
                                                            const data::Dataset* dataset);

}  // namespace megalith::run
