// BlendedDataset: samples of several datasets, interleaved so that each has its share at every moment.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "megalith/data/gpt/index_cache.h"
#include "megalith/data/gpt/pretrain_dataset.h"

namespace megalith::data {

struct BlendIndices {
  IndexArray datasets;  // int16: which dataset
  IndexArray samples;   // int64: which of its samples
};

// `size` samples. Step i takes the dataset whose count lags behind weight · max(i, 1) most, the first one of equals.
BlendIndices blend_by_weight(std::span<const double> weights, int64_t size);
// Exactly sizes[d] samples of each dataset d, in the same way.
BlendIndices blend_exhaustively(std::span<const int64_t> sizes);

class BlendedDataset final : public PretrainDataset {
 public:
  // Throws DataError when a dataset has fewer samples than the indices ask of it. `names` are for that message.
  BlendedDataset(std::vector<std::shared_ptr<const PretrainDataset>> datasets, BlendIndices indices,
                 std::span<const std::string> names);

  int64_t size() const override { return indices_.datasets.rows(); }
  // With `dataset` set.
  PretrainSample sample(int64_t index) const override;

  const BlendIndices& indices() const { return indices_; }

 private:
  std::vector<std::shared_ptr<const PretrainDataset>> datasets_;
  BlendIndices indices_;
};

}  // namespace megalith::data
