// The datasets of a pre-training run.
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

// What a dataset knows of the tokenizer.
struct PretrainTokens {
  int64_t vocab_size = 0;  // ids are below it
  int64_t eod_id = 0;
  std::optional<int64_t> pad_id;
  std::string identity = "null";  // JSON: tells tokenizers apart in the description that caches are named by
};

// EOD is the tokenizer's EOS token; throws ConfigError when it has none. A pad token that is also BOS, EOS or the
// unknown token is taken for none, so that nothing real is masked.
PretrainTokens pretrain_tokens(const tokenizer::Tokenizer& tokenizer, const std::string& path);

// Which tokens a run reads, and what its samples look like. run::indexed_settings makes it from options.
struct IndexedSettings {
  DataSources sources;
  std::optional<std::filesystem::path> cache_folder;  // of indices; absent: PREFIX/cache/GPTDataset_indices, and the
                                                      // indices of blends are not kept
  bool eod_mask_loss = false;                         // ends of documents have no label
  bool reset_position_ids = false;                    // positions begin again after them
  bool reset_attention_mask = false;                  // documents do not see one another
};

struct PretrainDataRequest {
  IndexedSettings data;
  int64_t seq_length = 0;
  int64_t seed = 1234;                       // 0 to 2^32 - 1
  PerSplit<std::optional<int64_t>> samples;  // at least so many; empty: one epoch
  PretrainTokens tokens;
  bool keep_last_partial_validation_sample = false;
  io::LockWait wait;
};

// Constant; any number of threads may read. Null for a split without data: of weight 0, or without a path, or without
// sequences when no sample of it is asked for.
struct PretrainDatasets {
  std::shared_ptr<const PretrainDataset> train, valid, test;
};

// Every rank that reads data calls it with the same request; it is no collective. Indices are taken from the cache
// folder, or built there by the first that comes.
//
// A single prefix gives samples of it alone. A blend with weights w takes ceil(samples · w) of each prefix, from
// ceil(ceil(samples · w) · 1.005) that are built; one without weights takes whole epochs, in proportion to their sizes.
// Throws ConfigError for settings that cannot be, DataError for files, each naming the option or the file: also for ids
// beyond the vocabulary, where IndexedDataset::check_some finds them.
PretrainDatasets make_pretrain_datasets(const PretrainDataRequest& request);

// 100000 sequences of 1 to 4095 tokens: 1, 2, 3, … modulo the vocabulary, then EOD.
class MockSequences final : public SequenceSource {
 public:
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
