// Searches a text for added tokens. A table of first bytes skips most of a text without touching the tree. There is one
// finder for tokens in the original text and one for tokens in normalized text.
#include "megalith/tokenizer/steps/added_tokens_internal.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/tokenizer/text/unicode_internal.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer {

namespace {

// Whether a word character is right before or right after a position: a token with single_word must not touch one.
bool word_before(std::string_view text, size_t at) {
  return at > 0 && is_word(code_point_at(text, previous_character(text, at)));
}

bool word_after(std::string_view text, size_t at) { return at < text.size() && is_word(code_point_at(text, at)); }

// Returns the end of the whitespace before or after a position: lstrip and rstrip take it into the match.
size_t blanks_before(std::string_view text, size_t at) {
  while (at > 0) {
    const size_t before = previous_character(text, at);
    if (!is_whitespace(code_point_at(text, before))) break;
    at = before;
  }
  return at;
}

size_t blanks_after(std::string_view text, size_t at) {
  while (at < text.size() && is_whitespace(code_point_at(text, at))) at += utf8_length(text[at]);
  return at;
}

}  // namespace

AddedTokens::Finder::Finder(std::vector<PrefixTree::Key> keys) : tree(keys) {
  for (const PrefixTree::Key& key : keys) first[static_cast<unsigned char>(key.text[0])] = true;
}

// Sorted by id for lookups; each token is searched for in its own form, normalized or not.
AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const Normalizer* normalizer, const std::string& where)
    : tokens_(std::move(tokens)) {
  std::ranges::sort(tokens_, {}, &AddedToken::id);
  for (const AddedToken& token : tokens_) {
    by_content_.emplace(token.content, by_content_.size());
    if (token.single_word) require_unicode(where);
    forms_.push_back(token.content);
    if (token.normalized && normalizer) normalizer->apply(forms_.back());
  }
  // One list per Stage. Tokens whose normalized form is empty can never be found.
  std::array<std::vector<PrefixTree::Key>, 2> keys;
  for (size_t i = 0; i < tokens_.size(); ++i)
    if (!forms_[i].empty()) keys.at(tokens_[i].normalized ? 1 : 0).push_back({forms_[i], static_cast<int32_t>(i)});
  for (size_t stage = 0; stage < 2; ++stage) {
    auto& list = keys.at(stage);
    if (list.empty()) continue;
    std::ranges::sort(list, {}, &PrefixTree::Key::text);
    const auto same = std::ranges::adjacent_find(list, {}, &PrefixTree::Key::text);
    if (same != list.end())
      throw DataError(fmt::format("{}: the added tokens {} and {} are both \"{}\" in normalized text", where,
                                  tokens_[static_cast<size_t>(same->id)].id,
                                  tokens_[static_cast<size_t>((same + 1)->id)].id, same->text));
    finders_.at(stage).emplace(std::move(list));
  }
}

// Follows AddedVocabulary::find_matches: a match that fails single_word is skipped as a whole, and the search continues
// after a match, not after the whitespace that it takes.
std::vector<TextPart> AddedTokens::split(std::string_view text, Stage stage, PlainBytes plain) const {
  std::vector<TextPart> parts;
  const std::optional<Finder>& finder = finders_.at(static_cast<size_t>(stage));
  size_t done = 0;
  for (size_t at = 0; finder && at < text.size();) {
    if (!finder->first[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    size_t length = 0;
    size_t longest = 0;
    // The walk goes from short to long, so the last call is the longest token.
    finder->tree.walk(text.substr(at), [&](size_t bytes, int32_t position) {
      length = bytes;
      longest = static_cast<size_t>(position);
    });
    if (length == 0) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + length;
    at = end;
    const AddedToken& token = tokens_[longest];
    // Skipped as a whole: its text is encoded like any other text, which keeps user input from forging special tokens.
    if (token.special && plain.has(begin)) continue;
    if (token.single_word && (word_before(text, begin) || word_after(text, end))) continue;
    if (token.lstrip) begin = std::max(blanks_before(text, begin), done);
    if (token.rstrip) end = blanks_after(text, end);
    if (done < begin) parts.push_back({done, begin, std::nullopt});
    parts.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), std::nullopt});
  return parts;
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

std::optional<size_t> AddedTokens::position_of(int32_t id) const {
  const auto found = std::ranges::lower_bound(tokens_, id, {}, &AddedToken::id);
  if (found == tokens_.end() || found->id != id) return std::nullopt;
  return static_cast<size_t>(found - tokens_.begin());
}

const AddedToken* AddedTokens::find(int32_t id) const {
  const auto position = position_of(id);
  return position ? &tokens_[*position] : nullptr;
}

// Decoding shows the normalized form, as tokenizers does.
const std::string& AddedTokens::decoded(int32_t id) const {
  const auto position = position_of(id);
  check(position.has_value(), "token {} is not an added token", id);
  return forms_[*position];
}

}  // namespace megalith::tokenizer
