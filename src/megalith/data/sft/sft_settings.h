// SftSettings: which records of data files are read, and what they become. run::sft_settings makes it from options; a
// program may fill it in by itself. Names of members are those of the options, where there is one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/choices.h"
#include "megalith/data/sft/chat_encoder.h"
#include "megalith/data/sft/convert_record.h"

namespace megalith::data {

// Whether several samples share a row.
enum class Packing {
  kNone,
  kPlain,  // a row is one text: its samples see those before them
  kNeat,   // samples of a row do not see one another; documents have no such packing
};

struct SftSettings {
  // Which records.
  std::vector<std::string> dataset;  // names in dataset_info.json, or paths
  std::string dataset_dir = "data";
  std::optional<int64_t> max_samples;  // of each dataset; absent: all of them
  config::MixStrategy mix_strategy = config::MixStrategy::kConcat;
  std::vector<std::string>
      interleave_probs;                   // one number per dataset, or none: in turn. As text: caches are named by it
  double val_size = 0;                    // held out: below 1 a part, from 1 on a number of records
  std::vector<std::string> eval_dataset;  // evaluation data of its own
  bool eval_on_each_dataset = false;      // one evaluation per name, in place of one of all

  // What becomes of a record.
  SampleKind kind = SampleKind::kConversation;
  int cutoff_len = 2048;  // tokens of a row
  Packing packing = Packing::kNone;
  bool train_on_prompt = false;  // prompts have labels, too
  bool mask_history = false;     // only the last turn has labels
  TemplateChoice chat;

  // How it is done.
  int preprocessing_batch_size = 1000;                  // records that are tokenized, and packed, together
  int preprocessing_num_workers = 1;                    // threads that tokenize; results do not depend on them
  int buffer_size = 16384;                              // records of a stream that are shuffled together
  std::optional<std::filesystem::path> tokenized_path;  // a folder of tokens to load or to make; absent: none
};

}  // namespace megalith::data
