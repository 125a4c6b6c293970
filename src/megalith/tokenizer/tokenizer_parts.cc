// Collects the parts of a tokenizer while its files are read, and numbers tokens that a file adds without an id.
#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/tokenizer/models/vocabulary_internal.h"
#include "megalith/tokenizer/tokenizer_parts_internal.h"

namespace megalith::tokenizer {

std::optional<int32_t> Tokenizer::Parts::id_of(std::string_view token) const {
  const auto found = by_content_.find(std::string(token));
  return found != by_content_.end() ? added[found->second].id : model->id_of(token);
}

// Numbers new tokens like tokenizers: after the model's tokens and after all added ones.
int32_t Tokenizer::Parts::next_id() const {
  return std::max(last_id_ + 1, std::max(model->id_end(), static_cast<int32_t>(model->size())));
}

// The checks come in the order of tokenizers: known content, then the model's id, then the file's, then a free one.
void Tokenizer::Parts::add(AddedToken token, const std::string& where) {
  check<DataError>(!token.content.empty(), "{}: an added token is empty", where);
  if (const auto same = by_content_.find(token.content); same != by_content_.end()) {
    token.id = added[same->second].id;
    // A second definition replaces the flags of the first, but keeps its id.
    added[same->second] = std::move(token);
    return;
  }
  if (const auto known = model->id_of(token.content)) {
    if (token.id >= 0 && token.id != *known)
      log_warning("{}: the added token \"{}\" has id {}, but the model's vocabulary has it as {}, which is used", where,
                  token.content, token.id, *known);
    token.id = *known;
  } else if (token.id < 0) {
    token.id = next_id();
  }
  check<DataError>(token.id < Vocabulary::kMaxIds, "{}: the added token \"{}\" has id {}; the largest id is {}", where,
                   token.content, token.id, Vocabulary::kMaxIds - 1);
  if (const auto other = model->token_of(token.id); other && *other != token.content)
    throw DataError(fmt::format("{}: the added token \"{}\" has id {}, which is the id of \"{}\" in the vocabulary",
                                where, token.content, token.id, *other));
  const auto [taken, fresh] = by_id_.emplace(token.id, added.size());
  if (!fresh)
    throw DataError(fmt::format("{}: the added tokens \"{}\" and \"{}\" both have id {}", where,
                                added[taken->second].content, token.content, token.id));
  by_content_.emplace(token.content, added.size());
  last_id_ = std::max(last_id_, token.id);
  added.push_back(std::move(token));
}

}  // namespace megalith::tokenizer
