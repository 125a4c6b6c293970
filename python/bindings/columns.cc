// Rows of Arrow's columns, read from where they lie. A row is found by bisection among the first rows of the chunks.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "dataset.h"
#include "megalith/base/error.h"

namespace megalith::python {

namespace {

// Returns the bounds of a row among the values of a column.
std::pair<int64_t, int64_t> bounds(const ColumnDataset::Column& column, int64_t row) {
  if (column.offsets.scalar_type() == at::kLong) {
    const auto* offsets = column.offsets.const_data_ptr<int64_t>();
    return {offsets[row], offsets[row + 1]};
  }
  const auto* offsets = column.offsets.const_data_ptr<int32_t>();
  return {offsets[row], offsets[row + 1]};
}

std::vector<int32_t> row_of(const ColumnDataset::Column& column, int64_t row, const std::string& place) {
  const auto [begin, end] = bounds(column, row);
  std::vector<int32_t> result(static_cast<size_t>(end - begin));
  AT_DISPATCH_INTEGRAL_TYPES(column.values.scalar_type(), "row_of", [&] {
    const auto* values = column.values.const_data_ptr<scalar_t>() + begin;
    for (size_t i = 0; i < result.size(); ++i) {
      const auto value = static_cast<int64_t>(values[i]);
      check<DataError>(value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max(),
                       "{} holds {}, which is not a token id", place, value);
      result[i] = static_cast<int32_t>(value);
    }
  });
  return result;
}

void keep_where(const std::vector<int32_t>& mask, std::vector<int32_t>& values) {
  size_t next = 0;
  for (size_t i = 0; i < mask.size(); ++i)
    if (mask[i] != 0) values[next++] = values[i];
  values.resize(next);
}

}  // namespace

ColumnDataset::ColumnDataset(std::vector<Chunk> chunks, const at::Tensor& order, std::string name)
    : chunks_(std::move(chunks)), order_(order), name_(std::move(name)) {
  first_rows_.push_back(0);
  for (const Chunk& chunk : chunks_) first_rows_.push_back(first_rows_.back() + chunk.rows());
  check<DataError>(size() > 0, "{} has no samples", name_);
}

int64_t ColumnDataset::size() const { return order_.defined() ? order_.size(0) : first_rows_.back(); }

std::pair<const ColumnDataset::Chunk*, int64_t> ColumnDataset::find(int64_t index) const {
  const int64_t row = order_.defined() ? order_.const_data_ptr<int64_t>()[index] : index;
  const auto after = std::ranges::upper_bound(first_rows_, row);
  const auto chunk = static_cast<size_t>(after - first_rows_.begin() - 1);
  check<DataError>(row >= 0 && chunk < chunks_.size(), "{} has no row {}", name_, row);
  return {&chunks_[chunk], row - first_rows_[chunk]};
}

data::Sample ColumnDataset::sample(int64_t index) const {
  const auto [chunk, row] = find(index);
  const std::string place = fmt::format("sample {} of {}", index, name_);
  data::Sample sample;
  sample.row.ids = row_of(chunk->ids, row, place);
  sample.row.labels = chunk->labels ? row_of(*chunk->labels, row, place) : sample.row.ids;
  check<DataError>(sample.row.labels.size() == sample.row.ids.size(),
                   "{} has {} labels and {} input_ids; there must be one label per token: its own id, or -100 where"
                   " nothing is predicted",
                   place, sample.row.labels.size(), sample.row.ids.size());
  if (chunk->mask) {
    const std::vector<int32_t> mask = row_of(*chunk->mask, row, place);
    check<DataError>(mask.size() == sample.row.ids.size(), "{} has {} values of \"attention_mask\" and {} tokens",
                     place, mask.size(), sample.row.ids.size());
    keep_where(mask, sample.row.ids);
    keep_where(mask, sample.row.labels);
  }
  check<DataError>(!sample.row.ids.empty(), "{} has no tokens", place);
  return sample;
}

int64_t ColumnDataset::tokens(int64_t index) const {
  const auto [chunk, row] = find(index);
  const auto [begin, end] = bounds(chunk->ids, row);
  return end - begin;
}

}  // namespace megalith::python
