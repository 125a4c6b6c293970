// JSON lines to indexed datasets: what Megatron's tools/preprocess_data.py does.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "megalith/data/indexed/staged_files.h"
#include "megalith/data/indexed/token_type.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::data {

struct TokenizeCorpusOptions {
  std::vector<std::string> inputs;             // files of JSON lines, packed or not; "-" is stdin
  std::string output;                          // OUTPUT_KEY_document.bin and .idx
  std::vector<std::string> json_keys{"text"};  // fields to tokenize: a string, or a list of strings (several sequences)
  bool append_eod = false;                     // the tokenizer's EOS token behind each document that is not empty
  bool add_special_tokens = false;             // what the tokenizer is made to put around each text (BOS, for example)
  bool skip_bad_lines = false;                 // count lines that cannot be read instead of stopping at the first
  int workers = 1;                             // threads; the result does not depend on it
};

struct TokenizeCorpusProgress {
  int64_t documents = 0, tokens = 0, input_bytes = 0, bad_lines = 0;
};

struct TokenizeCorpusResult {
  struct Output {
    std::string key, prefix;
    TokenType type = TokenType::kInt32;
    int64_t documents = 0, sequences = 0, tokens = 0;
  };
  std::vector<Output> outputs;  // one a key
  TokenizeCorpusProgress total;
  std::vector<std::string> bad_line_messages;  // of the first ones
};

// Every line is one document, also an empty one. Writes into `files`, which the caller commits. A reader, `workers`
// threads and the calling thread, which writes; memory is bounded by a few MB a worker and the longest line. `progress`
// is called on the calling thread every MB or so.
//
// Throws DataError naming file and line for what is not a JSON object in UTF-8, lacks a key or has no text there, and
// when there are no tokens at all; ConfigError for options that cannot be.
TokenizeCorpusResult tokenize_corpus(const tokenizer::Tokenizer& tokenizer, const TokenizeCorpusOptions& options,
                                     StagedFiles& files,
                                     const std::function<void(const TokenizeCorpusProgress&)>& progress = {});

}  // namespace megalith::data
