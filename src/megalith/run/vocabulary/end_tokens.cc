#include "megalith/run/vocabulary/end_tokens.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace megalith::run {

namespace {

// Numbers only: null and anything else mean that config.json names none.
std::vector<int64_t> end_ids_of(const model::ModelConfig& model) {
  std::vector<int64_t> ids;
  const io::Json* found = model::config_value(model, "eos_token_id");
  if (found == nullptr) return ids;
  const io::Json& given = *found;
  if (given.is_number_integer()) ids.push_back(given.get<int64_t>());
  if (given.is_array())
    for (const io::Json& id : given)
      if (id.is_number_integer()) ids.push_back(id.get<int64_t>());
  return ids;
}

}  // namespace

std::vector<std::string> end_token_warnings(const model::ModelConfig& model, const RunVocabulary& vocabulary) {
  std::vector<std::string> warnings;
  const std::vector<int64_t> ids = end_ids_of(model);
  const int64_t size = std::max(vocabulary.size, model.vocab_size);
  for (const int64_t id : ids)
    if (id < 0 || id >= size)
      warnings.push_back(fmt::format(
          "eos_token_id in config.json is {}, and the vocabulary has the ids 0 to {}: texts would never end;"
          " correct config.json",
          id, size - 1));
  const auto own = vocabulary.tokenizer ? vocabulary.tokenizer->eos_id() : std::nullopt;
  if (warnings.empty() && own && !ids.empty() && std::ranges::find(ids, *own) == ids.end())
    warnings.push_back(
        fmt::format("eos_token_id in config.json is {}, and the tokenizer ends texts with {} ({}): the model learns the"
                    " one and stops at the other; correct one of them",
                    fmt::join(ids, ", "), *own, vocabulary.tokenizer->token_of(*own).value_or("?")));
  return warnings;
}

}  // namespace megalith::run
