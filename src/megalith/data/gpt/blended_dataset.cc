// Megatron's greedy blending: an error-diffusion (Bresenham) of the weights. After every step, the number of samples
// taken from dataset d differs from weight[d] · step by little, so any prefix of the run has the right mixture. The
// order is part of the data's identity: doubles are computed and compared exactly as in Megatron's C++ helper, which is
// why this file is compiled without fused multiply-add (CMakeLists.txt).
#include "megalith/data/gpt/blended_dataset.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "megalith/base/error.h"

namespace megalith::data {

namespace {

// Collects the choices and counts how many samples each dataset has contributed.
class BlendOrder {
 public:
  BlendOrder(std::span<const double> weights, int64_t size) : weights_(weights), taken_(weights.size()) {
    datasets_.reserve(static_cast<size_t>(size));
    samples_.reserve(static_cast<size_t>(size));
  }

  // Returns the dataset of `open` that is furthest below its share.
  size_t most_behind(std::span<const size_t> open) const {
    const double step = std::max(static_cast<double>(datasets_.size()), 1.0);
    size_t best = open[0];
    double largest = std::numeric_limits<double>::lowest();
    for (const size_t d : open) {
      const double lag = weights_[d] * step - static_cast<double>(taken_[d]);
      if (lag > largest) {
        largest = lag;
        best = d;
      }
    }
    return best;
  }

  // Appends the next sample of the dataset. Returns how many have been taken from it.
  int64_t take(size_t dataset) {
    datasets_.push_back(static_cast<int16_t>(dataset));
    samples_.push_back(taken_[dataset]);
    return ++taken_[dataset];
  }

  BlendIndices finish() && {
    const auto size = static_cast<int64_t>(datasets_.size());
    return {IndexArray(std::move(datasets_), {size}), IndexArray(std::move(samples_), {size})};
  }

 private:
  std::span<const double> weights_;
  std::vector<int64_t> taken_;
  std::vector<int16_t> datasets_;
  std::vector<int64_t> samples_;
};

// Returns 0 … count - 1.
std::vector<size_t> all_of(size_t count) {
  // Indices of datasets are int16.
  check<ConfigError>(count > 0 && count < 32767, "a blend of {} datasets; 1 to 32766 can be blended", count);
  std::vector<size_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), size_t{0});
  return numbers;
}

}  // namespace

BlendIndices blend_by_weight(std::span<const double> weights, int64_t size) {
  const std::vector<size_t> open = all_of(weights.size());
  BlendOrder blend(weights, size);
  for (int64_t i = 0; i < size; ++i) blend.take(blend.most_behind(open));
  return std::move(blend).finish();
}

// An exhausted dataset drops out, and the others share the remaining steps by the same rule.
BlendIndices blend_exhaustively(std::span<const int64_t> sizes) {
  std::vector<size_t> open = all_of(sizes.size());
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::vector<double> weights;
  for (const int64_t size : sizes) weights.push_back(static_cast<double>(size) / static_cast<double>(total));
  std::erase_if(open, [&](size_t d) { return sizes[d] == 0; });
  BlendOrder blend(weights, total);
  while (!open.empty()) {
    const size_t dataset = blend.most_behind(open);
    if (blend.take(dataset) == sizes[dataset]) std::erase(open, dataset);
  }
  return std::move(blend).finish();
}

BlendedDataset::BlendedDataset(std::vector<std::shared_ptr<const PretrainDataset>> datasets, BlendIndices indices,
                               std::span<const std::string> names)
    : datasets_(std::move(datasets)), indices_(std::move(indices)) {
  // Indices may come from a cache of another size, so the largest request to each dataset is checked once, here.
  std::vector<int64_t> asked(datasets_.size());
  for (int64_t i = 0; i < size(); ++i) {
    const int64_t dataset = indices_.datasets[i];
    check<DataError>(dataset >= 0 && dataset < static_cast<int64_t>(datasets_.size()),
                     "entry {} of the blend is dataset {}, but there are {}", i, dataset, datasets_.size());
    int64_t& most = asked[static_cast<size_t>(dataset)];
    most = std::max(most, indices_.samples[i] + 1);
  }
  for (size_t d = 0; d < datasets_.size(); ++d)
    check<DataError>(asked[d] <= datasets_[d]->size(),
                     "the blend needs {} samples of {}, which has {}. Ask for fewer samples or lower its weight",
                     asked[d], names[d], datasets_[d]->size());
}

PretrainSample BlendedDataset::sample(int64_t index) const {
  check(index >= 0 && index < size(), "sample {} of a blend is asked for; there are {}", index, size());
  const int64_t dataset = indices_.datasets[index];
  PretrainSample sample = datasets_[static_cast<size_t>(dataset)]->sample(indices_.samples[index]);
  sample.dataset = static_cast<int32_t>(dataset);
  return sample;
}

}  // namespace megalith::data
