// From indices to samples. shuffle[index] gives a row of the sample index; that row and the next one give the first and
// last (entry of the document index, token), both inclusive, since neighboring samples share one token:
//
//   documents   | seq 7          | seq 2    | seq 9               |
//   samples     |-- row 0 ---|                                       seq_length + 1 tokens
//                            |-- row 1 ----------|                   starts with the last token of row 0
//
// Cached indices come from files that may be damaged, so every number is checked before it is used.
#include "megalith/data/gpt/gpt_dataset.h"

#include <algorithm>
#include <numeric>

#include "megalith/base/error.h"

namespace megalith::data {

namespace {

GptIndices from_arrays(IndexArrays arrays) {
  return {.documents = std::move(arrays[0]), .samples = std::move(arrays[1]), .shuffle = std::move(arrays[2])};
}

// From the cache if there is a key; cached indices must have the shapes of the request.
GptIndices make_indices(const SequenceSource& source, const GptIndexRequest& request,
                        const std::optional<IndexCacheKey>& cache, const io::LockWait& wait) {
  if (!cache) return build_gpt_indices(source, request);
  const auto build = [&]() -> IndexArrays {
    GptIndices built = build_gpt_indices(source, request, /*shows_progress=*/true);
    return {built.documents, built.samples, built.shuffle};
  };
  const auto accept = [&](const IndexArrays& arrays) {
    check_gpt_indices(from_arrays(arrays), source, request, cache->path("document_index.npy").string());
  };
  return from_arrays(load_or_build(*cache, {"document_index", "sample_index", "shuffle_index"}, build, accept, wait));
}

// Returns where the parts of the sample start: at 0 and after each EOD; and the end of the sample.
std::vector<int32_t> part_bounds(const std::vector<int64_t>& tokens, int64_t eod_id) {
  std::vector<int32_t> bounds{0};
  const auto size = static_cast<int32_t>(tokens.size());
  for (int32_t i = 0; i + 1 < size; ++i)
    if (tokens[static_cast<size_t>(i)] == eod_id) bounds.push_back(i + 1);
  bounds.push_back(size);
  return bounds;
}

}  // namespace

GptDataset::GptDataset(std::shared_ptr<const SequenceSource> source, const GptIndexRequest& request,
                       const GptSampleOptions& options, const std::optional<IndexCacheKey>& cache,
                       const io::LockWait& wait)
    : source_(std::move(source)),
      options_(options),
      seq_length_(request.seq_length),
      pad_id_(options.pad_id == options.eod_id ? -1 : options.pad_id.value_or(-1)),
      indices_(make_indices(*source_, request, cache, wait)) {}

// Returns the seq_length + 1 tokens of a sample, padded at the end if the data ends early.
std::vector<int64_t> GptDataset::text(int64_t index) const {
  check(index >= 0 && index < size(), "sample {} of {} is requested; there are {}", index, source_->name(), size());
  const int64_t row = indices_.shuffle[index];
  check<DataError>(row >= 0 && row < size(), "{}: the cached shuffle index is damaged: entry {} is {}", source_->name(),
                   index, row);
  const IndexArray& rows = indices_.samples;
  const int64_t first = rows[2 * row], last = rows[2 * row + 2];
  check<DataError>(0 <= first && first <= last && last < indices_.documents.rows(),
                   "{}: the cached sample index is damaged: row {} is {}, the next {}", source_->name(), row, first,
                   last);
  std::vector<int64_t> tokens(static_cast<size_t>(seq_length_ + 1), pad_id_);
  size_t filled = 0;
  for (int64_t entry = first; entry <= last; ++entry) {
    const int64_t sequence = indices_.documents[entry];
    check<DataError>(sequence >= 0 && sequence < source_->sequence_count(),
                     "{}: the cached document index is damaged: entry {} is {}", source_->name(), entry, sequence);
    const int64_t begin = entry == first ? rows[2 * row + 1] : 0;
    const int64_t length = source_->length(sequence);
    const int64_t end = entry == last ? std::min(rows[2 * row + 3] + 1, length) : length;
    const int64_t count = end - begin;
    check<DataError>(begin >= 0 && count >= 0 && count <= static_cast<int64_t>(tokens.size() - filled),
                     "{}: the cached sample index is damaged: row {} has token {} to {} of a sequence of {}",
                     source_->name(), row, begin, end, length);
    source_->read(sequence, begin, std::span(tokens).subspan(filled, static_cast<size_t>(count)));
    filled += static_cast<size_t>(count);
  }
  return tokens;
}

// Masks and positions follow Megatron's get_ltor_masks_and_position_ids.
PretrainSample GptDataset::sample(int64_t index) const {
  PretrainSample sample;
  sample.tokens = text(index);
  sample.labels.assign(sample.tokens.begin() + 1, sample.tokens.end());
  sample.tokens.pop_back();
  const size_t size = sample.tokens.size();

  const std::vector<int32_t> parts = part_bounds(sample.tokens, options_.eod_id);
  sample.cumulative_lengths = options_.reset_attention_mask ? parts : std::vector<int32_t>{0, parts.back()};
  sample.position_ids.resize(size);
  if (options_.reset_position_ids) {
    for (size_t i = 0; i + 1 < parts.size(); ++i)
      std::iota(sample.position_ids.begin() + parts[i], sample.position_ids.begin() + parts[i + 1], int64_t{0});
  } else {
    std::iota(sample.position_ids.begin(), sample.position_ids.end(), int64_t{0});
  }

  sample.loss_mask.assign(size, 1.0F);
  for (size_t i = 0; i < size; ++i) {
    const bool masked = (options_.eod_mask_loss && sample.tokens[i] == options_.eod_id) || sample.labels[i] == pad_id_;
    if (masked) sample.loss_mask[i] = 0;
    // Padding may be -1, but the embedding needs a valid id.
    if (sample.tokens[i] == pad_id_) sample.tokens[i] = 0;
    if (sample.labels[i] == pad_id_) sample.labels[i] = 0;
  }
  return sample;
}

}  // namespace megalith::data
