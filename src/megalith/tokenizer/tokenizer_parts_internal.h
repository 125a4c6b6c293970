// Tokenizer::Parts: the parts of a tokenizer as the readers of files produce them.
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

// Filled by one of the readers below, completed by read_special_tokens, and then moved into a Tokenizer.
struct Tokenizer::Parts {
  std::string source;                           // the file, for messages
  std::unique_ptr<Normalizer> normalizer;       // nullptr for none
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // nullptr: a text is one piece
  std::unique_ptr<Model> model;
  std::vector<AddedToken> added;  // contents and ids are unique; see add
  PostProcessor post_processor;
  std::unique_ptr<Decoder> decoder;  // nullptr: tokens are joined by spaces
  // std::nullopt until a file names them; stop_ids are those of generation_config.json.
  std::optional<int32_t> bos_id, eos_id, pad_id, unk_id;
  std::vector<int32_t> stop_ids;

  // Returns the id of an added token or of a token of the model.
  std::optional<int32_t> id_of(std::string_view token) const;
  // Adds a token, or changes the one with the same content. A token that the model has keeps the model's id; a new one
  // gets token.id or, if that is -1, the next free id. Throws DataError, naming `where`, when the id belongs to another
  // token.
  void add(AddedToken token, const std::string& where);

 private:
  // The next free id, as tokenizers would number a new token.
  int32_t next_id() const;

  // Keep add() fast: files may have thousands of added tokens.
  std::unordered_map<std::string, size_t> by_content_;  // position in `added`
  std::unordered_map<int32_t, size_t> by_id_;
  int32_t last_id_ = -1;  // the largest added id
};

// Reads a tokenizer.json. `file` is its name in messages. Throws DataError, naming the field.
Tokenizer::Parts read_tokenizer_json(std::string_view json, const std::string& file);
// Reads vocab.json and merges.txt, and added_tokens.json if it exists.
Tokenizer::Parts read_vocab_and_merges(const std::filesystem::path& folder);
// Reads tokenizer.model. Throws ConfigError when the build has no SentencePiece.
Tokenizer::Parts read_sentencepiece(const std::filesystem::path& file);

// Reads the first of these that the folder has, and the files beside it: see Tokenizer::from_folder.
Tokenizer::Parts read_folder(const std::filesystem::path& folder);

// Adds the settings of tokenizer_config.json, special_tokens_map.json and generation_config.json of the folder.
void read_special_tokens(const std::filesystem::path& folder, Tokenizer::Parts& parts);

}  // namespace megalith::tokenizer
