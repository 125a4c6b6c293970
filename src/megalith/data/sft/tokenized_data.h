// From `--dataset` to datasets of tokens.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/data/batch_loader.h"
#include "megalith/data/dataset.h"
#include "megalith/data/sft/mix.h"
#include "megalith/data/sft/record_encoder.h"
#include "megalith/data/sft/sft_settings.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::data {

struct DataRequest {
  SftSettings data;  // `dataset` is what is read
  uint64_t seed = 42;
  std::optional<int64_t> vocab_size;  // of the model: ids beyond it are refused before training
  // A tokenizer and the folder it was read from (which names it in the key of the cache). Neither for data with ids.
  std::optional<tokenizer::Tokenizer> tokenizer;
  std::filesystem::path tokenizer_folder;
  // In place of what make_turn_encoder (chat_encoder.h) makes of data.chat.
  std::shared_ptr<const TurnEncoder> turns;
  // Tokens are kept in a folder here, named by everything they depend on; not kept when empty. The same on all ranks.
  std::filesystem::path cache_folder;
  std::chrono::milliseconds wait_limit = std::chrono::hours(2);  // for the rank that tokenizes
};

// The same for evaluation data: `names` (eval_dataset, or one of it when eval_on_each_dataset) in place of dataset, all
// of them, one after the other. What is said of the training data alone goes: mixing, val_size and
// tokenized_path, whose tokens are those of the training data.
DataRequest evaluation_request(DataRequest request, const std::vector<std::string>& names);

// One set of data to evaluate on.
struct EvaluationRequest {
  std::string name;  // in its metrics; empty when it is the only one
  DataRequest request;
};
// What eval_dataset asks for: all of it together, or, with eval_on_each_dataset, each name on its own. None without it.
std::vector<EvaluationRequest> evaluation_requests(const DataRequest& request);

struct TokenizedData {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> validation;  // nothing without val_size
  std::string report;                         // how it came about, a line for the log
};

// Reads, selects, mixes, splits, tokenizes and packs, in this order, in batches of preprocessing_batch_size records on
// preprocessing_num_workers threads. The result depends on files and options alone. Of ranks
// that share a cache_folder or tokenized_path one does the work while the others wait; call it outside of collectives.
//
// With tokenized_path: a folder that is there is loaded, whatever other options say; otherwise tokens are saved there.
//
// Throws ConfigError and DataError that name the dataset, file and line: broken records, missing columns, ids beyond
// the vocabulary, no samples.
TokenizedData load_tokenized_data(const DataRequest& request);

// A stream: nothing is tokenized ahead, memory is bounded. Each epoch reads the files again, with records
// shuffled in a buffer of buffer_size; num_samples has no effect. A whole val_size holds out the first so many records
// of the mixed files.
struct StreamedData {
  OpenStream train;                           // for make_stream_loader
  std::shared_ptr<const Dataset> validation;  // nothing without val_size
};
// Throws ConfigError for what streaming cannot do: max_samples, a fraction as val_size, tokenized_path.
StreamedData open_streamed_data(const DataRequest& request);

// The encoder that a request asks for.
std::shared_ptr<const RecordEncoder> make_record_encoder(const DataRequest& request);
// How several datasets are mixed.
MixOptions mix_options(const DataRequest& request);

// The padding of such samples: sequences as long as the longest, rounded up to a multiple of 64 (documents: 8). cp and
// tp are for the caller to set.
CollatorOptions collator_options(SampleKind kind, int32_t pad_id);

}  // namespace megalith::data
