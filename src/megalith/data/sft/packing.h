// Several samples in one row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megalith/data/sample.h"

namespace megalith::data {

// Which samples share a row of `capacity` tokens: the longest that still fits goes next. Of equal lengths the later
// sample is taken first. Every length is at most capacity.
std::vector<std::vector<size_t>> plan_rows(std::span<const int64_t> lengths, int64_t capacity);

struct PackedRows {
  std::vector<Sequence> rows;  // each padded to cutoff + 1 tokens with `pad`, label kIgnoredLabel
  int64_t too_long = 0;        // samples left out: longer than cutoff
};

// `neat`: samples of a row do not see one another.
PackedRows pack_samples(std::vector<Sequence> samples, int64_t cutoff, bool neat, int32_t pad);

}  // namespace megalith::data
