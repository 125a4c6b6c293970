// AddedTokens: tokens that are found in a text before the model sees it, as in tokenizers' AddedVocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megalith/tokenizer/steps/normalizer_internal.h"
#include "megalith/tokenizer/text/prefix_tree_internal.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::tokenizer {

// One added token, with the flags of tokenizer.json.
struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool single_word = false;  // only matches without adjacent word characters
  bool lstrip = false;       // also takes the whitespace on its left
  bool rstrip = false;       // also takes the whitespace on its right
  bool normalized = false;   // searched for in the normalized text, in its own normalized form
  bool special = false;      // left out of decoded text on request
};

// A stretch of a text: an added token, or the text between two of them.
struct TextPart {
  size_t begin, end;
  std::optional<int32_t> id;
};

// Immutable and safe to share between threads.
class AddedTokens {
 public:
  // Contents must be unique and not empty, ids unique. Throws DataError, naming `where`, when two tokens have the same
  // normalized form.
  AddedTokens(std::vector<AddedToken> tokens, const Normalizer* normalizer, const std::string& where);
  AddedTokens(const AddedTokens&) = delete;
  AddedTokens& operator=(const AddedTokens&) = delete;

  // Cuts a text at the tokens that are (kNormalized) or are not (kPlain) searched for in normalized text. The leftmost
  // match wins, of several the longest. Of `options` those about special tokens count.
  enum class Stage { kPlain, kNormalized };
  std::vector<TextPart> split(std::string_view text, Stage stage, const EncodeOptions& options) const;
  bool has(Stage stage) const { return finders_[static_cast<size_t>(stage)].has_value(); }

  const AddedToken* find(std::string_view content) const;
  const AddedToken* find(int32_t id) const;
  // Returns the text that decoders get for an added token: its normalized form if it has one.
  const std::string& decoded(int32_t id) const;
  const std::vector<AddedToken>& all() const { return tokens_; }

 private:
  struct Finder {
    explicit Finder(std::vector<PrefixTree::Key> keys);
    PrefixTree tree;                // its ids are positions in tokens_
    std::array<bool, 256> first{};  // bytes with which some token starts
  };

  std::optional<size_t> position_of(int32_t id) const;

  std::vector<AddedToken> tokens_;                           // by id
  std::unordered_map<std::string_view, size_t> by_content_;  // position in tokens_
  std::vector<std::string> forms_;                           // the searched texts, in the same order
  std::array<std::optional<Finder>, 2> finders_;             // by stage
};

}  // namespace megalith::tokenizer
