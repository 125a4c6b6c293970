// Turns JSON lines and tables into indexed datasets, like Megatron's tools/preprocess_data.py.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "megalith/data/indexed/staged_files.h"
#include "megalith/data/indexed/token_type.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::data {

// Options of tokenize_corpus, as of the command `data tokenize`. The same inputs and options give the same files, byte
// for byte, for any number of workers.
struct TokenizeCorpusOptions {
  std::vector<std::string> inputs;  // tables (table_reader.h), or JSON lines, compressed or not; "-" is stdin
  std::string output;               // files are named OUTPUT_KEY_document.bin and .idx
  std::vector<std::string> json_keys{"text"};  // fields to tokenize: a string, or a list of strings (several sequences)
  bool append_eod = false;                     // append the tokenizer's EOS token to each document that is not empty
  bool add_special_tokens = false;             // add the tokenizer's special tokens to each text (BOS, for example)
  bool skip_bad_lines = false;                 // count lines that cannot be read instead of stopping at the first
  int workers = 1;                             // threads; the result does not depend on it
};

// Totals so far. Over all keys and inputs.
struct TokenizeCorpusProgress {
  int64_t documents = 0, tokens = 0, input_bytes = 0, bad_lines = 0;
};

// The datasets that tokenize_corpus has written.
struct TokenizeCorpusResult {
  // One pair of files, PREFIX.bin and PREFIX.idx.
  struct Output {
    std::string key, prefix;
    TokenType type = TokenType::kInt32;
    int64_t documents = 0, sequences = 0, tokens = 0;
  };
  std::vector<Output> outputs;  // one per key
  TokenizeCorpusProgress total;
  std::vector<std::string> bad_line_messages;  // for the first 10 bad lines
};

// Tokenizes the inputs. Every line, or row of a table, is one document, even if its text is empty. Writes into `files`,
// which the caller commits. Runs a reader thread and `workers` threads; the calling thread writes. Memory is bounded by
// a few MB per worker and the longest line. `progress` is called on the calling thread about once per MB of input.
//
// Throws a DataError that names the file and the line if a line is not a JSON object in UTF-8, lacks a key or has no
// text there, and if there are no tokens at all. Throws a ConfigError for invalid options.
TokenizeCorpusResult tokenize_corpus(const tokenizer::Tokenizer& tokenizer, const TokenizeCorpusOptions& options,
                                     StagedFiles& files,
                                     const std::function<void(const TokenizeCorpusProgress&)>& progress = {});

}  // namespace megalith::data
