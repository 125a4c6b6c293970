// AddedTokens: tokens that are found in a text before the model sees it, as in tokenizers' AddedVocabulary.
// "Hi<|im_end|>" is cut into the text "Hi" and the token <|im_end|>, whatever the model's merges would make from the
// latter.
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

namespace megalith::tokenizer {

// One added token, with the flags of tokenizer.json. With content "<mask>", in the text "a <mask> b<mask>":
//
//   no flags      two matches, "<mask>" each
//   single_word   the first only: a word character touches the second
//   lstrip        " <mask>" and "<mask>"
//   rstrip        "<mask> " and "<mask>"
struct AddedToken {
  // Text and id; -1 lets Tokenizer::Parts choose one.
  std::string content;
  int32_t id = -1;
  bool single_word = false;  // only matches without adjacent word characters
  bool lstrip = false;       // also takes the whitespace on its left
  bool rstrip = false;       // also takes the whitespace on its right
  bool normalized = false;   // searched for in the normalized text, in its own normalized form
  bool special = false;      // left out of decoded text on request
};

// A stretch of a text, [begin, end) in bytes: an added token, or the text between two of them (std::nullopt).
struct TextPart {
  size_t begin, end;
  std::optional<int32_t> id;
};

// The bytes [begin, end) of a text, in which special tokens are plain text.
struct PlainBytes {
  size_t begin = 0, end = 0;
  bool has(size_t at) const { return at >= begin && at < end; }
};

// Immutable and safe to share between threads.
class AddedTokens {
 public:
  // Contents must be unique and not empty, ids unique. Throws DataError, naming `where`, when two tokens have the same
  // normalized form.
  AddedTokens(std::vector<AddedToken> tokens, const Normalizer* normalizer, const std::string& where);
  // The tables hold views of tokens_ and forms_.
  AddedTokens(const AddedTokens&) = delete;
  AddedTokens& operator=(const AddedTokens&) = delete;

  // Cuts a text at the tokens that are (kNormalized) or are not (kPlain) searched for in normalized text. The leftmost
  // match wins, of several the longest. Special tokens that begin in
  // `plain` are plain text.
  enum class Stage { kPlain, kNormalized };
  // Whether split() can find any token at this stage; if not, callers need not call it.
  std::vector<TextPart> split(std::string_view text, Stage stage, PlainBytes plain) const;
  bool has(Stage stage) const { return finders_[static_cast<size_t>(stage)].has_value(); }

  // Look up a token by its content or id; nullptr when there is none.
  const AddedToken* find(std::string_view content) const;
  const AddedToken* find(int32_t id) const;
  // Returns the text that decoders get for an added token: its normalized form if it has one.
  const std::string& decoded(int32_t id) const;
  // All tokens, by id.
  const std::vector<AddedToken>& all() const { return tokens_; }

 private:
  // Searches for the tokens of one stage.
  struct Finder {
    explicit Finder(std::vector<PrefixTree::Key> keys);
    PrefixTree tree;                // its ids are positions in tokens_
    std::array<bool, 256> first{};  // bytes with which some token starts
  };

  // The index in tokens_ of an id; std::nullopt when it is not an added token.
  std::optional<size_t> position_of(int32_t id) const;

  std::vector<AddedToken> tokens_;                           // by id
  std::unordered_map<std::string_view, size_t> by_content_;  // position in tokens_
  std::vector<std::string> forms_;                           // the searched texts, in the same order
  std::array<std::optional<Finder>, 2> finders_;             // by stage
};

}  // namespace megalith::tokenizer
