// The vocabulary files of Megatron's TikTokenizer as a tokenizer.json.
//
// Such a file is a JSON list of {"rank", "token_bytes" (base64), "token_str"}, ordered by rank, the 256 bytes first.
// Special tokens have the ids below num_special_tokens, and a token of rank r the id r + num_special_tokens. tiktoken
// joins the neighbors whose joined text has the lowest rank; a tokenizer.json says which neighbors each token is made
// of, which gives the same ids.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith::tokenizer {

// Settings that the file does not contain.
struct TiktokenSettings {
  std::string pattern = "v2";               // how text is cut into words: v1 or v2
  int num_special_tokens = 1000;            // those without a name are called <SPECIAL_n>
  std::vector<std::string> special_tokens;  // names of the first; empty for <unk> <s> </s> <mask> <pad> <cls> <sep>
  std::optional<int> vocab_size;            // ids in all; later tokens of the file are dropped. std::nullopt: 131072
};

// Returns tokenizer.json and tokenizer_config.json (names and contents) for the text of a vocabulary file; `name` is
// its name in messages. Throws DataError for a file that is not such a list, and ConfigError for settings that do not
// fit.
std::vector<std::pair<std::string, std::string>> tiktoken_files(std::string_view vocabulary, const std::string& name,
                                                                const TiktokenSettings& settings);

}  // namespace megalith::tokenizer
