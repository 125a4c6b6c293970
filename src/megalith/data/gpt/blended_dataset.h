// BlendedDataset: samples of several datasets, interleaved so that each has its share at any point of the run.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "megalith/data/gpt/index_cache.h"
#include "megalith/data/gpt/pretrain_dataset.h"

namespace megalith::data {

// For each sample of the blend, where it comes from. Both arrays have one entry per sample. 10 bytes per sample of the
// run: Megatron's types, since caches are shared with it.
struct BlendIndices {
  IndexArray datasets;  // int16: index of the dataset
  IndexArray samples;   // int64: index of the sample in it
};

// Returns a blend of `size` samples. Step i takes the dataset whose count is furthest below weight · max(i, 1); the
// first one wins ties. Megatron's rule.
BlendIndices blend_by_weight(std::span<const double> weights, int64_t size);
// Returns a blend of exactly sizes[d] samples of each dataset d, interleaved in the same way.
BlendIndices blend_exhaustively(std::span<const int64_t> sizes);

// Draws samples from several datasets in the order of BlendIndices.
class BlendedDataset final : public PretrainDataset {
 public:
  // Throws a DataError if a dataset has fewer samples than the indices require. `names` are for that message.
  BlendedDataset(std::vector<std::shared_ptr<const PretrainDataset>> datasets, BlendIndices indices,
                 std::span<const std::string> names);

  int64_t size() const override { return indices_.datasets.rows(); }
  // Returns a sample with PretrainSample::dataset set.
  PretrainSample sample(int64_t index) const override;

  // Returns the order of the blend, for tests and caches.
  const BlendIndices& indices() const { return indices_; }

 private:
  std::vector<std::shared_ptr<const PretrainDataset>> datasets_;
  BlendIndices indices_;
};

}  // namespace megalith::data
