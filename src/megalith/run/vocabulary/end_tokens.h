// Checks the end-of-text ids of config.json: generation stops at them, so a wrong id shows only after training.
#pragma once

#include <string>
#include <vector>

#include "megalith/model/families/model_config.h"
#include "megalith/run/vocabulary/run_vocabulary.h"

namespace megalith::run {

// Returns a sentence for each eos_token_id of config.json (a number or a list) that is not an id of the vocabulary, and
// one if none of them is the end-of-text token of the tokenizer, where both are known.
std::vector<std::string> end_token_warnings(const model::ModelConfig& model, const RunVocabulary& vocabulary);

}  // namespace megalith::run
