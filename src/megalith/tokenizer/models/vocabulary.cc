// An open-addressing hash table over one long string, which loads a vocabulary of 150,000 tokens without an allocation
// per token.
#include <algorithm>
#include <bit>

#include "megalith/base/error.h"
#include "megalith/tokenizer/models/vocabulary_internal.h"
#include "megalith/tokenizer/text/hash_internal.h"

namespace megalith::tokenizer {

void Vocabulary::reserve(size_t tokens, size_t bytes) {
  text_.reserve(bytes);
  spans_.reserve(tokens);
  grow(std::bit_ceil(std::max<size_t>(16, tokens * 2)));
}

// Doubles the table and inserts everything again.
void Vocabulary::grow(size_t slots) {
  if (slots <= slots_.size()) return;
  slots_.assign(slots, {});
  for (size_t id = 0; id < spans_.size(); ++id)
    if (spans_[id].length >= 0) insert(hash_bytes(view(spans_[id])), static_cast<int32_t>(id));
}

// The upper half of the hash is the tag in the slot, the lower half its position, so the two are independent.
void Vocabulary::insert(uint64_t hash, int32_t id) {
  const size_t mask = slots_.size() - 1;
  size_t slot = hash & mask;
  while (slots_[slot].id >= 0) slot = (slot + 1) & mask;
  slots_[slot] = {static_cast<uint32_t>(hash >> 32), id};
}

void Vocabulary::add(std::string_view token, int32_t id) {
  check(id >= 0 && id < kMaxIds && text_.size() + token.size() <= UINT32_MAX, "token id {} is out of range", id);
  if (spans_.size() <= static_cast<size_t>(id)) spans_.resize(static_cast<size_t>(id) + 1);
  Span& span = spans_[static_cast<size_t>(id)];
  check(span.length < 0, "token id {} is taken", id);
  span = {static_cast<uint32_t>(text_.size()), static_cast<int32_t>(token.size())};
  text_ += token;
  // At most half full, so that a search for an absent token ends soon.
  if (slots_.size() < (count_ + 1) * 2) {
    grow(std::bit_ceil(std::max<size_t>(16, (count_ + 1) * 4)));  // also inserts this token
  } else {
    insert(hash_bytes(token), id);
  }
  ++count_;
}

std::optional<int32_t> Vocabulary::find(std::string_view token) const {
  if (slots_.empty()) return std::nullopt;
  const size_t mask = slots_.size() - 1;
  const uint64_t hash = hash_bytes(token);
  const auto tag = static_cast<uint32_t>(hash >> 32);  // compared first: the text is touched only for a likely match
  for (size_t slot = hash & mask; slots_[slot].id >= 0; slot = (slot + 1) & mask) {
    const Slot& found = slots_[slot];
    if (found.tag == tag && view(spans_[static_cast<size_t>(found.id)]) == token) return found.id;
  }
  return std::nullopt;
}

std::optional<std::string_view> Vocabulary::token(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= spans_.size() || spans_[static_cast<size_t>(id)].length < 0)
    return std::nullopt;
  return view(spans_[static_cast<size_t>(id)]);
}

}  // namespace megalith::tokenizer
