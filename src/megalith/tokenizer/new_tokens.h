// Adds tokens to the tokenizer of a model folder: in memory, and in the files that a new model folder gets.
//
//   const GrownTokenizer grown = add_tokens(folder, {{"<call>", /*special=*/true}, {"kilonova"}});
//   grown.tokenizer.encode("a kilonova");     // one id for the new word
//
// Tokens, flags and ids are those of add_tokens in transformers; the files are read by transformers and by
// Tokenizer::from_folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "megalith/tokenizer/tokenizer.h"

namespace megalith::tokenizer {

// A token to add.
struct NewToken {
  std::string text;
  // Left out of decoded text with skip_special_tokens, and searched for before the text is normalized; other tokens are
  // searched for afterwards.
  bool special = false;
};

struct GrownTokenizer {
  Tokenizer tokenizer;
  // Ids of the tokens that the tokenizer did not know, in the order given; they follow the ids that it had.
  std::vector<int32_t> new_ids;
  // Tokens that it had already, with the same ids as before. One that was only a token of the model has become an added
  // token, which the text is searched for as a whole.
  std::vector<std::string> known;
  // The files that differ from those of the folder: text by file name. Empty if every token was an added one before.
  std::map<std::string, std::string> files;
};

// Reads the tokenizer of `folder` and adds `tokens`, in their order. A token that is an added one already keeps its
// flags. Throws like Tokenizer::from_folder.
GrownTokenizer add_tokens(const std::filesystem::path& folder, const std::vector<NewToken>& tokens);

}  // namespace megalith::tokenizer
