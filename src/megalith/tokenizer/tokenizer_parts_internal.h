// What a tokenizer is made of, as the readers of files hand it over.
#pragma once

#include <filesystem>
#include <memory>
#include <unordered_map>

#include "megalith/tokenizer/models/model_internal.h"
#include "megalith/tokenizer/steps/added_tokens_internal.h"
#include "megalith/tokenizer/steps/decoder_internal.h"
#include "megalith/tokenizer/steps/normalizer_internal.h"
#include "megalith/tokenizer/steps/post_processor_internal.h"
#include "megalith/tokenizer/steps/pre_tokenizer_internal.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::tokenizer {

struct Tokenizer::Parts {
  std::string source;                           // the file, for messages
  std::unique_ptr<Normalizer> normalizer;       // null: none
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // null: a text is one piece
  std::unique_ptr<Model> model;
  std::vector<AddedToken> added;  // contents and ids are unique; see add
  PostProcessor post_processor;
  std::unique_ptr<Decoder> decoder;  // null: tokens with blanks between them
  std::optional<int32_t> bos_id, eos_id, pad_id, unk_id;
  std::vector<int32_t> stop_ids;

  // The id of an added token or of one of the model's.
  std::optional<int32_t> id_of(std::string_view token) const;
  // Adds a token, or changes the one with the same content. One that the model has keeps the model's id; a new one
  // takes token.id, or the next free id when that is -1. Throws DataError, naming `where`, when the id belongs to
  // another token.
  void add(AddedToken token, const std::string& where);

 private:
  int32_t next_id() const;

  std::unordered_map<std::string, size_t> by_content_;  // positions in `added`
  std::unordered_map<int32_t, size_t> by_id_;
  int32_t last_id_ = -1;  // the largest of the added ids
};

// A tokenizer.json.
Tokenizer::Parts read_tokenizer_json(std::string_view json, const std::string& file);
// vocab.json and merges.txt, with added_tokens.json where it is.
Tokenizer::Parts read_vocab_and_merges(const std::filesystem::path& folder);
// tokenizer.model. Throws ConfigError when the build has no SentencePiece.
Tokenizer::Parts read_sentencepiece(const std::filesystem::path& file);

// Adds what tokenizer_config.json, special_tokens_map.json and generation_config.json of the folder say.
void read_special_tokens(const std::filesystem::path& folder, Tokenizer::Parts& parts);

}  // namespace megalith::tokenizer
