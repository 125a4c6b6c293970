// Unigram as in tokenizers and SentencePiece: splits a piece into the tokens with the largest sum of scores, which are
// log probabilities: the most likely split under independent tokens.
#pragma once

#include <array>

#include "megalith/tokenizer/models/model_internal.h"
#include "megalith/tokenizer/models/vocabulary_internal.h"
#include "megalith/tokenizer/text/prefix_tree_internal.h"

namespace megalith::tokenizer {

// See unigram.cc for the search. With the scores a -1, b -1, ab -1.5, c -2, the piece "abc" becomes ab c (-3.5), not
// a b c (-4).
class Unigram final : public Model {
 public:
  // `scores` are by id. tokenize() throws DataError, naming `where`, for a text that needs an unknown token when there
  // is none.
  Unigram(Vocabulary vocabulary, std::vector<double> scores, std::optional<int32_t> unk_id, bool byte_fallback,
          std::string where);

  void tokenize(const Pieces& pieces, std::vector<int32_t>& ids) const override;
  std::optional<int32_t> id_of(std::string_view token) const override { return vocabulary_.find(token); }
  std::optional<std::string_view> token_of(int32_t id) const override { return vocabulary_.token(id); }
  size_t size() const override { return vocabulary_.size(); }
  int32_t id_end() const override { return vocabulary_.id_end(); }

 private:
  // A state of the search: score, start and token of the best way to a position.
  struct Step;

  // `best` is working memory that is reused between pieces.
  void tokenize_piece(std::string_view piece, std::vector<Step>& best, std::vector<int32_t>& ids) const;
  // Appends the ids of a text that no tokens cover.
  void append_unknown(std::string_view text, std::vector<int32_t>& ids) const;

  Vocabulary vocabulary_;
  // Scores by id, and the score of an unknown character, below all of them.
  std::vector<double> scores_;
  double unk_score_;
  std::optional<int32_t> unk_id_;
  std::array<int32_t, 256> fallback_ids_{};  // ids of <0x00> to <0xFF>; -1 if not used
  // All tokens, to find those that start at a position in one walk.
  PrefixTree tree_;
  // For the message about a text without tokens.
  std::string where_;
};

}  // namespace megalith::tokenizer
