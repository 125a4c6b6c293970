// The source of samples.
//
// Each member is an option: options/data.cc gives its name, its range and its meaning, and docs/options.md shows them.
// Comments here add only what the help text does not say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/enums.h"

namespace megalith::config {

// Conversations, preference pairs and documents as LLaMA-Factory describes them. RunConfig::stage says which of the
// three a record is; module `data` receives the result as data::SftSettings.
struct DataConfig {
  // Sources.
  std::vector<std::string> dataset;
  std::vector<std::string> eval_dataset;
  std::string dataset_dir = "data";
  // From a record to a row of tokens, and the tokens that count in the loss.
  std::optional<std::string> template_name;
  int cutoff_len = 2048;
  bool train_on_prompt = false;
  bool mask_history = false;
  // Reading while training.
  bool streaming = false;
  int buffer_size = 16384;
  // Several datasets, and the part that is held out.
  MixStrategy mix_strategy = MixStrategy::kConcat;
  std::vector<std::string> interleave_probs;
  double val_size = 0.0;
  bool eval_on_each_dataset = false;
  std::optional<int64_t> max_samples;
  // Several samples per row.
  std::optional<bool> packing;
  bool neat_packing = false;  // implies packing
  bool sequence_packing = false;
  // Tokenizing.
  std::optional<std::string> tokenized_path;
  int preprocessing_batch_size = 1000;
  std::optional<int> preprocessing_num_workers;
  // Variables of chat templates.
  std::optional<std::string> default_system;
  std::optional<bool> enable_thinking = true;
  bool preserve_thinking = false;
  bool operator==(const DataConfig&) const = default;
};

// The order of samples and the threads that load them.
struct SamplerConfig {
  SamplingStrategy train_sampling_strategy = SamplingStrategy::kRandom;
  bool disable_shuffling = false;
  bool group_by_length = false;
  bool ignore_data_skip = false;
  DataloaderType dataloader_type = DataloaderType::kSingle;
  int dataloader_num_workers = 0;
  std::optional<int> dataloader_prefetch_factor;
  bool operator==(const SamplerConfig&) const = default;
};

// Megatron's .bin/.idx files: token ids that `megalith data tokenize` or the reference's script wrote. Exactly one
// source is given: data_path with split, one list per split, a file with either, or mock_data.
struct IndexedDataConfig {
  std::vector<std::string> data_path;        // [weight] prefix …
  std::vector<std::string> train_data_path;  // this and the next two replace data_path and split
  std::vector<std::string> valid_data_path;
  std::vector<std::string> test_data_path;
  std::optional<std::string> data_args_path;
  std::optional<std::string> per_split_data_args_path;
  std::optional<std::string> split;
  bool mock_data = false;
  std::optional<std::string> data_cache_path;
  // Treatment of the ends of documents within a row.
  bool eod_mask_loss = false;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool operator==(const IndexedDataConfig&) const = default;
};

// Megatron's tokenizer options. A run needs the size of the vocabulary and the end-of-document id, even if its data is
// tokenized already.
struct TokenizerConfig {
  std::optional<std::string> type;
  std::optional<std::string> model;
  std::optional<std::string> vocab_file;
  std::optional<std::string> merge_file;
  std::optional<std::string> tiktoken_pattern;  // v1 or v2
  int tiktoken_num_special_tokens = 1000;       // ids below it; the vocabulary follows
  std::vector<std::string> tiktoken_special_tokens;
  int vocab_extra_ids = 0;
  bool operator==(const TokenizerConfig&) const = default;
};

}  // namespace megalith::config
