// The tokenizer of a pre-training run, from Megatron's options.
//
//   NullTokenizer           no text: ids below vocab_size, and one more that ends documents
//   HuggingFaceTokenizer    tokenizer_model: a folder, or a name on the hub whose files are in the local cache
//   SentencePieceTokenizer, GPTSentencePieceTokenizer, Llama2Tokenizer    tokenizer_model: a SentencePiece model
//   GPT2BPETokenizer        vocab_file and merge_file: gpt2-vocab.json and gpt2-merges.txt, under any names
//   TikTokenizer            tokenizer_model: a vocabulary in JSON (tokenizer/tiktoken.h)
//
// Without tokenizer_type: GPT2BPETokenizer when vocab_file is given, HuggingFaceTokenizer when tokenizer_model is, and
// NullTokenizer when only vocab_size is. vocab_extra_ids adds ids to any of them that no text has.
#pragma once

#include <filesystem>
#include <memory>
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
  std::filesystem::path folder;                   // holds its files under their usual names; empty without files
  // Removes `folder` with the last copy if that was made for files with other names; nullptr otherwise.
  std::shared_ptr<const void> temporary = nullptr;

  // Returns the sizes and ids that a fresh model's config.json needs.
  ModelVocabulary vocabulary() const;
};

// Returns the tokenizer, or std::nullopt if no option asks for one. Throws ConfigError for an unknown type or a missing
// option, and DataError for broken files.
std::optional<RunTokenizer> make_run_tokenizer(const config::TrainingArguments& args);
// Returns the tokenizer, or throws ConfigError that names the options that make one.
const RunTokenizer& required(const std::optional<RunTokenizer>& tokenizer);

}  // namespace megalith::run
