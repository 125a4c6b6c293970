// GptDataset: sequences concatenated and cut into samples of equal length, in shuffled order.
#pragma once

#include <memory>
#include <optional>

#include "megalith/data/gpt/gpt_index.h"
#include "megalith/data/gpt/index_cache.h"
#include "megalith/data/gpt/pretrain_dataset.h"

namespace megalith::data {

// How the tokens of a sample are treated. Megatron's options of the same names.
struct GptSampleOptions {
  int64_t eod_id = 0;                 // ends a document
  std::optional<int64_t> pad_id;      // not counted in the loss; ignored if equal to eod_id
  bool eod_mask_loss = false;         // eod_id tokens have loss mask 0
  bool reset_position_ids = false;    // positions restart after each eod_id
  bool reset_attention_mask = false;  // tokens do not attend to those before the last eod_id
};

// The samples of one source of sequences. Reading a sample touches the pages of a few sequences and checks every index
// on its way, since caches may be damaged.
class GptDataset final : public PretrainDataset {
 public:
  // Builds the indices (gpt_index.h) or, with a key, takes them from the cache (index_cache.h). Throws a DataError as
  // those functions do.
  GptDataset(std::shared_ptr<const SequenceSource> source, const GptIndexRequest& request,
             const GptSampleOptions& options, const std::optional<IndexCacheKey>& cache = std::nullopt,
             const io::LockWait& wait = {});

  int64_t size() const override { return indices_.shuffle.rows(); }
  PretrainSample sample(int64_t index) const override;

  // Returns the indices in use, built or cached.
  const GptIndices& indices() const { return indices_; }

 private:
  // Returns the tokens of a sample with its last label; sample() makes inputs, labels and masks from them.
  std::vector<int64_t> text(int64_t index) const;  // [seq_length + 1]

  std::shared_ptr<const SequenceSource> source_;
  GptSampleOptions options_;
  int64_t seq_length_;
  int64_t pad_id_;  // -1, which no file contains, if there is none
  GptIndices indices_;
};

}  // namespace megalith::data
