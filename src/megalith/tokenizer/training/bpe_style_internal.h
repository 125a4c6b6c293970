// The parts of a tokenizer.json that cut texts into words, used for training and for the file that is written.
#pragma once

#include <nlohmann/json.hpp>

#include "megalith/tokenizer/training/bpe_trainer.h"

namespace megalith::tokenizer {

// Return "normalizer" and "pre_tokenizer" of tokenizer.json. The trainer reads them back through the same readers as a
// finished tokenizer, so the two cannot cut differently.
nlohmann::ordered_json normalizer_json(PreTokenization kind);
nlohmann::ordered_json pre_tokenizer_json(PreTokenization kind);

}  // namespace megalith::tokenizer
