// SftSettings: which records of data files are read, and what they become. run::sft_settings makes them from the
// options; a program may also fill them in itself. Members are named like the options.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/enums.h"
#include "megalith/data/sft/chat_encoder.h"
#include "megalith/data/sft/convert_record.h"

namespace megalith::data {

// Whether several samples share a row. LLaMA-Factory's packing and neat_packing.
enum class Packing {
  kNone,   // one sample per row
  kPlain,  // a row is treated as one text: samples attend to those before them
  kNeat,   // samples of a row do not attend to one another; not available for documents
};

// Plain data with the defaults of the options; nothing is checked until it is used.
struct SftSettings {
  // ---- The selection of records ----
  std::vector<std::string> dataset;  // names in dataset_info.json, or paths
  std::string dataset_dir = "data";
  std::optional<int64_t> max_samples;  // records of each dataset; std::nullopt: all of them
  config::MixStrategy mix_strategy = config::MixStrategy::kConcat;
  // One number per dataset; without numbers, datasets take turns. Kept as text, since it is part of the names of
  // caches.
  std::vector<std::string> interleave_probs;
  double val_size = 0;                    // records held out: a fraction if < 1, otherwise a number
  std::vector<std::string> eval_dataset;  // separate evaluation data
  bool eval_on_each_dataset = false;      // one evaluation per name instead of one for all

  // ---- The form of samples ----
  // All of these are part of the key of a token cache.
  SampleKind kind = SampleKind::kConversation;
  int cutoff_len = 2048;  // maximum tokens of a row
  Packing packing = Packing::kNone;
  bool train_on_prompt = false;  // prompts have labels too
  bool mask_history = false;     // only the last turn has labels
  TemplateChoice chat;

  // ---- Execution ----
  // Only preprocessing_batch_size changes samples: packing works within a batch.
  int preprocessing_batch_size = 1000;                  // records that are tokenized, and packed, together
  int preprocessing_num_workers = 1;                    // threads that tokenize; results do not depend on them
  int buffer_size = 16384;                              // records of a stream that are shuffled together
  std::optional<std::filesystem::path> tokenized_path;  // a folder of tokens to load or create; std::nullopt: none
};

}  // namespace megalith::data
