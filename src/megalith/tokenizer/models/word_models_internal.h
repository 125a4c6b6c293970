// The simple models: whole words, words in pieces (BERT), and bytes.
#pragma once

#include "megalith/tokenizer/models/model_internal.h"
#include "megalith/tokenizer/models/vocabulary_internal.h"

namespace megalith::tokenizer {

// Base of the models below: implements everything that concerns the vocabulary.
class VocabularyModel : public Model {
 public:
  // Takes over the vocabulary.
  explicit VocabularyModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  std::optional<int32_t> id_of(std::string_view token) const override { return vocabulary_.find(token); }
  std::optional<std::string_view> token_of(int32_t id) const override { return vocabulary_.token(id); }
  size_t size() const override { return vocabulary_.size(); }
  int32_t id_end() const override { return vocabulary_.id_end(); }

 protected:
  // Constant after construction.
  Vocabulary vocabulary_;
};

// Each piece is one token or unknown.
class WordLevel final : public VocabularyModel {
 public:
  // Throws DataError, naming `where`, for an unknown piece when the vocabulary lacks `unk_token`.
  WordLevel(Vocabulary vocabulary, std::string unk_token, std::string where);
  void tokenize(const Pieces& pieces, std::vector<int32_t>& ids) const override;

 private:
  // For the message about a piece without a token.
  std::string unk_token_;
  std::optional<int32_t> unk_id_;
  std::string where_;
};

// Repeatedly takes the longest token that the rest starts with; if no token fits, the whole piece is unknown. With the
// tokens un, ##aff, ##able: "unaffable" -> un ##aff ##able.
class WordPiece final : public VocabularyModel {
 public:
  // `prefix` marks tokens inside a word ("##"); pieces of more than `max_characters` are unknown.
  WordPiece(Vocabulary vocabulary, std::string unk_token, std::string prefix, size_t max_characters, std::string where);
  void tokenize(const Pieces& pieces, std::vector<int32_t>& ids) const override;

 private:
  // Appends the tokens of a piece; returns false, with some of them appended, when no token fits.
  bool append_tokens(std::string_view piece, std::vector<int32_t>& ids) const;

  std::string unk_token_;
  std::optional<int32_t> unk_id_;
  std::string prefix_;     // prefix of tokens that continue a word
  size_t max_characters_;  // longer pieces are unknown
  std::string where_;
};

// Each byte is its own id. The tokens are called <0x00> to <0xFF>.
class ByteModel final : public VocabularyModel {
 public:
  // Needs no files: the vocabulary is fixed.
  ByteModel();
  void tokenize(const Pieces& pieces, std::vector<int32_t>& ids) const override;
  // Pieces are taken as they are, byte by byte.
  bool takes_bytes() const override { return true; }
};

}  // namespace megalith::tokenizer
