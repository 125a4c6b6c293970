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

// Conversations, preference pairs and documents as LLaMA-Factory describes them.
struct DataConfig {
  std::vector<std::string> dataset;
  std::vector<std::string> eval_dataset;
  std::string dataset_dir = "data";
  std::optional<std::string> template_name;
  int cutoff_len = 2048;
  bool train_on_prompt = false;
  bool mask_history = false;
  bool streaming = false;
  int buffer_size = 16384;
  MixStrategy mix_strategy = MixStrategy::kConcat;
  std::vector<std::string> interleave_probs;
  double val_size = 0.0;
  bool eval_on_each_dataset = false;
  std::optional<int64_t> max_samples;
  std::optional<bool> packing;
  bool neat_packing = false;  // implies packing
  bool sequence_packing = false;
  std::optional<std::string> tokenized_path;
  int preprocessing_batch_size = 1000;
  std::optional<int> preprocessing_num_workers;
  std::optional<std::string> default_system;
  std::optional<bool> enable_thinking = true;
  bool preserve_thinking = false;
  bool operator==(const DataConfig&) const = default;
};

// The order of samples and the threads that load them.
struct SamplerConfig {
  SamplingStrategy train_sampling_strategy = SamplingStrategy::kRandom;
  bool disable_shuffling = false;
  bool ignore_data_skip = false;
  DataloaderType dataloader_type = DataloaderType::kSingle;
  int dataloader_num_workers = 0;
  std::optional<int> dataloader_prefetch_factor;
  bool operator==(const SamplerConfig&) const = default;
};

// Megatron's .bin/.idx files.
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
  bool eod_mask_loss = false;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool operator==(const IndexedDataConfig&) const = default;
};

// Megatron's tokenizer options.
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
