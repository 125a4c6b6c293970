// The data that the arguments of a fine-tuning run name, ready for a Trainer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megalith/config/training_arguments.h"
#include "megalith/data/sft/tokenized_data.h"
#include "megalith/train/training_data.h"

namespace megalith::run {

// What data is read and collated with. The tokenizer's folder is empty for data that has ids.
struct DataTools {
  std::filesystem::path tokenizer_folder;
  int64_t vocab_size = 0;              // of the model
  std::filesystem::path cache_folder;  // of tokens; empty: none are kept
  data::CollateFunction collate{};     // a collator of one's own, for training and evaluation
};

struct RunData {
  std::optional<train::TrainingData> train;                    // nothing when only evaluation is asked for
  std::vector<train::EvalData> eval;                           // val_size, or eval_dataset (each, when asked)
  std::vector<std::pair<std::string, std::string>> described;  // "train", "1,024 samples"; for a summary
  std::vector<std::string> reports;                            // how it came about, lines for a log
};

// The request that the arguments make; reads the tokenizer. Throws ConfigError and DataError for a tokenizer, template
// or dataset name that does not exist, before any record is read.
data::DataRequest data_request(const config::TrainingArguments& args, const DataTools& tools);

// Reads, tokenizes (or finds in the cache) and describes. Every rank calls it with the same arguments; no collective.
// `args` after derive().
RunData open_run_data(const config::TrainingArguments& args, const DataTools& tools);

}  // namespace megalith::run
