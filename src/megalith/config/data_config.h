// Where samples come from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/choices.h"

namespace megalith::config {

// Conversations, preference pairs and documents as LLaMA-Factory describes them.
struct DataConfig {
  std::vector<std::string> dataset;                 // names in dataset_info.json, or paths
  std::vector<std::string> eval_dataset;            // the same for evaluation
  std::string dataset_dir = "data";                 // folder of dataset_info.json
  std::optional<std::string> template_name;         // chat template; empty: the tokenizer's
  int cutoff_len = 2048;                            // tokens of a sample
  bool train_on_prompt = false;                     // loss on prompts too
  bool mask_history = false;                        // loss on the last turn only
  bool streaming = false;                           // read as it goes; needs max_steps
  int buffer_size = 16384;                          // records shuffled at a time when streaming
  MixStrategy mix_strategy = MixStrategy::kConcat;  // several datasets
  std::vector<std::string> interleave_probs;        // one probability a dataset
  double val_size = 0.0;                            // count (>= 1) or fraction held out
  bool eval_on_each_dataset = false;                // one metric set a name
  std::optional<int64_t> max_samples;               // records kept of each dataset
  std::optional<bool> packing;                      // several samples a row; empty: on for pt
  bool neat_packing = false;                        // without attention between them; implies packing
  bool sequence_packing = false;                    // the adapter's name for that
  std::optional<std::string> tokenized_path;        // load tokens from here, or save them here
  int preprocessing_batch_size = 1000;              // also the packing horizon
  std::optional<int> preprocessing_num_workers;     // threads; the result does not depend on it
  std::optional<std::string> default_system;        // system message of the template
  std::optional<bool> enable_thinking = true;       // reasoning templates
  bool preserve_thinking = false;                   // keep thoughts of earlier turns
  bool operator==(const DataConfig&) const = default;
};

struct SamplerConfig {
  SamplingStrategy train_sampling_strategy = SamplingStrategy::kRandom;  // order of an epoch
  bool disable_shuffling = false;                                        // the same as sequential
  bool ignore_data_skip = false;                                         // resume from the start of the data
  DataloaderType dataloader_type = DataloaderType::kSingle;              // Megatron: single or cyclic
  int dataloader_num_workers = 0;                                        // checked, without effect
  std::optional<int> dataloader_prefetch_factor;                         // checked, without effect
  bool operator==(const SamplerConfig&) const = default;
};

// Megatron's .bin/.idx files.
struct IndexedDataConfig {
  std::vector<std::string> data_path;                   // [weight] prefix …
  std::vector<std::string> train_data_path;             // per split, in place of data_path and split
  std::vector<std::string> valid_data_path;             // per split
  std::vector<std::string> test_data_path;              // per split
  std::optional<std::string> data_args_path;            // file with the words of data_path
  std::optional<std::string> per_split_data_args_path;  // JSON file with the three lists
  std::optional<std::string> split;                     // "969, 30, 1" when empty
  bool mock_data = false;                               // random tokens
  std::optional<std::string> data_cache_path;           // sample indices; empty: beside the data
  bool eod_mask_loss = false;                           // no loss on end-of-document tokens
  bool reset_position_ids = false;                      // positions restart after them
  bool reset_attention_mask = false;                    // no attention across them
  bool operator==(const IndexedDataConfig&) const = default;
};

struct TokenizerConfig {
  std::optional<std::string> type;              // Megatron's class name
  std::optional<std::string> model;             // file or folder
  std::optional<std::string> vocab_file;        // GPT-2 vocabulary
  std::optional<std::string> merge_file;        // GPT-2 merges
  std::optional<std::string> tiktoken_pattern;  // v1 or v2
  bool operator==(const TokenizerConfig&) const = default;
};

}  // namespace megalith::config
