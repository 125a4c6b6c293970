// The tokenizer of a pre-training run, from Megatron's options.
//
//   NullTokenizer           no text: ids below vocab_size, and one more that ends documents
//   HuggingFaceTokenizer    tokenizer_model: a folder
//   SentencePieceTokenizer, Llama2Tokenizer    tokenizer_model: a folder's tokenizer.model
//   GPT2BPETokenizer        vocab_file and merge_file: vocab.json and merges.txt of one folder
//
// Without tokenizer_type: GPT2BPETokenizer when vocab_file is given, HuggingFaceTokenizer when tokenizer_model is, and
// NullTokenizer when only vocab_size is.
#pragma once

#include <filesystem>
#include <optional>

#include "megalith/config/training_arguments.h"
#include "megalith/data/gpt/pretrain_datasets.h"
#include "megalith/run/resolve/model_from_options.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::run {

// A tokenizer, or only the facts about one.
struct RunTokenizer {
  std::optional<tokenizer::Tokenizer> tokenizer;  // std::nullopt for NullTokenizer
  data::PretrainTokens tokens;                    // facts about it that datasets need
  std::filesystem::path folder;                   // holds its files; empty without files

  // Returns the sizes and ids that a fresh model's config.json needs.
  ModelVocabulary vocabulary() const;
};

// Returns the tokenizer, or std::nullopt if no option asks for one. Throws ConfigError for an unknown type or a missing
// option, and DataError for broken files.
std::optional<RunTokenizer> make_run_tokenizer(const config::TrainingArguments& args);
// Returns the tokenizer, or throws ConfigError that names the options that make one.
const RunTokenizer& required(const std::optional<RunTokenizer>& tokenizer);

}  // namespace megalith::run
