// Loads `--dataset` as datasets of tokens.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
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

// Everything that the tokens of a run depend on.
struct DataRequest {
  SftSettings data;  // data.dataset is what is read
  uint64_t seed = 42;
  std::optional<int64_t> vocab_size;  // vocabulary size of the model: larger ids are refused before training
  // A tokenizer and the folder it was read from (whose files are part of the cache key). Neither for data with ids.
  std::optional<tokenizer::Tokenizer> tokenizer;
  std::filesystem::path tokenizer_folder;
  std::map<std::string, std::string> changed_tokenizer_files{};  // text by name, of those that differ from the folder's
  std::optional<MediaSettings> media{};                          // std::nullopt: the model takes no images
  LabelForm labels{};                                            // RecordEncoderOptions::labels
  std::optional<int32_t> score_pad{};                            // RecordEncoderOptions::score_pad
  // If set, used instead of the result of make_turn_encoder (chat_encoder.h) for data.chat.
  std::shared_ptr<const TurnEncoder> turns;
  // Tokens are cached in a subfolder named by everything they depend on; not cached if empty. The same on all ranks.
  std::filesystem::path cache_folder;
  std::chrono::milliseconds wait_limit = std::chrono::hours(2);  // how long other ranks wait for the one that tokenizes
};

// Returns the request for evaluation data: all records of `names` (eval_dataset, or one of it with
// eval_on_each_dataset), one dataset after the other. Settings that apply only to training data are reset: mixing,
// val_size and tokenized_path, which holds the tokens of the training data.
DataRequest evaluation_request(DataRequest request, const std::vector<std::string>& names);

// One evaluation.
struct EvaluationRequest {
  std::string name;  // in its metrics; empty if it is the only one
  DataRequest request;
};
// Returns the evaluations for eval_dataset: one for all names, or, with eval_on_each_dataset, one per name. Empty
// without eval_dataset.
std::vector<EvaluationRequest> evaluation_requests(const DataRequest& request);

// The result of load_tokenized_data.
struct TokenizedData {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> validation;  // nullptr without val_size
  std::string report;                         // how it was made: one line for the log
  int64_t left_out = 0;                       // records and samples that `train` lacks; the report says why
};

// Reads, selects, mixes, splits, tokenizes and packs, in this order, in batches of preprocessing_batch_size records on
// preprocessing_num_workers threads. The result depends only on files and options. Among ranks that share a
// cache_folder or tokenized_path one does the work while the others wait; call it outside collectives.
//
// With tokenized_path, an existing folder is loaded, whatever other options say; otherwise tokens are saved there.
//
// Throws a ConfigError or DataError that names the dataset, file and line: broken records, missing columns, ids outside
// the vocabulary, no samples.
//
// Reading files tells how far it is, where `shows_progress`: on one rank, since all of them read. Tokenizing is told by
// the rank that does it.
TokenizedData load_tokenized_data(const DataRequest& request, bool shows_progress = true);

// A stream: nothing is tokenized in advance, and memory is bounded. Each epoch reads the files again, with records
// shuffled in a buffer of buffer_size; num_samples has no effect. val_size, a whole number here, holds out that many
// records from the start of the mixed files.
struct StreamedData {
  OpenStream train;                           // for make_stream_loader
  std::shared_ptr<const Dataset> validation;  // nullptr without val_size
};
// Throws a ConfigError for options that streaming does not support: max_samples, a fraction as val_size,
// tokenized_path.
StreamedData open_streamed_data(const DataRequest& request);

// Makes the encoder of a request.
std::shared_ptr<const RecordEncoder> make_record_encoder(const DataRequest& request);
// Returns how the datasets of a request are mixed.
MixOptions mix_options(const DataRequest& request);

// Returns the padding for such samples: all sequences as long as the longest, rounded up to a multiple of 64 (8 for
// documents). The caller sets cp and tp. `pad_id` is RecordEncoder::pad_id().
CollatorOptions collator_options(SampleKind kind, int32_t pad_id);

}  // namespace megalith::data
