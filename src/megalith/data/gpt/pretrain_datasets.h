// Builds the datasets of a pre-training run.
//
//   const auto datasets = make_pretrain_datasets({.data = {.sources = {.all = Blend{{"corpus/part"}}}},
//                                                 .seq_length = 4096,
//                                                 .samples = {10'000, 500, 0},
//                                                 .tokens = pretrain_tokens(tokenizer, path)});
//   datasets.train->sample(0).tokens …
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/data/gpt/data_sources.h"
#include "megalith/data/gpt/index_cache.h"
#include "megalith/data/gpt/pretrain_dataset.h"
#include "megalith/data/indexed/sequence_source.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::data {

// The properties of the tokenizer that datasets need.
struct PretrainTokens {
  int64_t vocab_size = 0;  // ids are less than this
  int64_t eod_id = 0;
  std::optional<int64_t> pad_id;
  std::string identity = "null";  // JSON that distinguishes tokenizers in the names of cache files
};

// Returns the properties of a tokenizer. EOD is its EOS token; throws a ConfigError if it has none. A pad token that is
// also BOS, EOS or the unknown token is ignored, so that no real token is masked.
PretrainTokens pretrain_tokens(const tokenizer::Tokenizer& tokenizer, const std::string& path);

// The tokens that a run reads and the form of its samples. run::indexed_settings makes them from the options.
struct IndexedSettings {
  DataSources sources;
  std::optional<std::filesystem::path> cache_folder;  // for indices; std::nullopt: PREFIX/cache/GPTDataset_indices, and
                                                      // indices of blends are not stored
  bool eod_mask_loss = false;                         // EOD tokens do not count in the loss
  bool reset_position_ids = false;                    // positions restart after each EOD
  bool reset_attention_mask = false;                  // documents do not attend to one another
};

// The arguments of make_pretrain_datasets. Everything that decides which samples a run sees, and in which order.
struct PretrainDataRequest {
  IndexedSettings data;
  int64_t seq_length = 0;
  int64_t seed = 1234;                       // 0 to 2^32 - 1
  PerSplit<std::optional<int64_t>> samples;  // at least this many; std::nullopt: one epoch
  PretrainTokens tokens;
  bool keep_last_partial_validation_sample = false;
  io::LockWait wait;
};

// The result of make_pretrain_datasets. Thread-safe. nullptr for a split without data: one with weight 0, without a
// path, or without sequences if no samples are requested from it.
struct PretrainDatasets {
  std::shared_ptr<const PretrainDataset> train, valid, test;
};

// Builds the datasets of all splits. Every rank that reads data calls it with the same request, but it is not a
// collective: indices are taken from the cache folder, or built there by the first rank that gets the lock.
//
// A single prefix is used alone. A blend with weights w takes ceil(samples · w) samples of each prefix, out of
// ceil(ceil(samples · w) · 1.005) that are built; one without weights takes whole epochs, in proportion to their sizes.
// Throws a ConfigError for invalid settings and a DataError for bad files, including ids outside the vocabulary if
// IndexedDataset::check_some finds them. Messages name the option or the file.
PretrainDatasets make_pretrain_datasets(const PretrainDataRequest& request);

// Data for benchmarks and tests: 100000 sequences of 1 to 4095 tokens, 1, 2, 3, … modulo the vocabulary, then EOD.
class MockSequences final : public SequenceSource {
 public:
  // Ids are less than `vocab_size`; `eod_id` ends each sequence.
  MockSequences(int64_t vocab_size, int64_t eod_id);

  const std::string& name() const override { return name_; }
  int64_t sequence_count() const override { return static_cast<int64_t>(lengths_.size()); }
  int64_t length(int64_t sequence) const override { return lengths_[static_cast<size_t>(sequence)]; }
  void read(int64_t sequence, int64_t offset, std::span<int64_t> out) const override;

 private:
  std::string name_ = "mock data";
  int64_t vocab_size_, eod_id_;
  std::vector<int32_t> lengths_;
};

}  // namespace megalith::data
