// GptDataset: sequences joined and cut into samples, in shuffled order.
#pragma once

#include <memory>
#include <optional>

#include "megalith/data/gpt/gpt_index.h"
#include "megalith/data/gpt/index_cache.h"
#include "megalith/data/gpt/pretrain_dataset.h"

namespace megalith::data {

// What is made of the tokens of a sample.
struct GptSampleOptions {
  int64_t eod_id = 0;                 // ends a document
  std::optional<int64_t> pad_id;      // not counted in the loss; taken for none when it is eod_id
  bool eod_mask_loss = false;         // tokens that are eod_id have loss mask 0
  bool reset_position_ids = false;    // positions start again behind them
  bool reset_attention_mask = false;  // a part of the sample ends with each of them
};

class GptDataset final : public PretrainDataset {
 public:
  // Builds the indices, or takes them from the cache when there is a key. Throws DataError as those functions do.
  GptDataset(std::shared_ptr<const SequenceSource> source, const GptIndexRequest& request,
             const GptSampleOptions& options, const std::optional<IndexCacheKey>& cache = std::nullopt,
             const io::LockWait& wait = {});

  int64_t size() const override { return indices_.shuffle.rows(); }
  PretrainSample sample(int64_t index) const override;

  const GptIndices& indices() const { return indices_; }

 private:
  std::vector<int64_t> text(int64_t index) const;

  std::shared_ptr<const SequenceSource> source_;
  GptSampleOptions options_;
  int64_t seq_length_;
  int64_t pad_id_;  // -1, which no file holds, for none
  GptIndices indices_;
};

}  // namespace megalith::data
