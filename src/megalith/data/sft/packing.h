// Packs several samples into one row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megalith/data/sample.h"

namespace megalith::data {

// Decides which samples share a row of `capacity` tokens: greedily, the longest that still fits comes next. Among equal
// lengths the last sample is taken first. No length may exceed the capacity. Each inner list holds the numbers of the
// samples of one row. O(n log n).
std::vector<std::vector<size_t>> plan_rows(std::span<const int64_t> lengths, int64_t capacity);

// The result of pack_samples.
struct PackedRows {
  std::vector<Sequence> rows;  // each padded to cutoff + 1 tokens with `pad`, label kIgnoredLabel
  int64_t too_long = 0;        // number of samples dropped because they are longer than cutoff
};

// Packs samples into rows. With `neat`, samples of a row do not attend to one another. Empty samples are dropped
// without being counted. Rows come out in the order in which they were filled.
PackedRows pack_samples(std::vector<Sequence> samples, int64_t cutoff, bool neat, int32_t pad);

}  // namespace megalith::data
