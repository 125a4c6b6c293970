// The passes of a separable filter. Each output value is
//
//   clamp((half + sum over taps of weight * input) >> precision, 0, 255)
//
// in 32-bit integers, with half = 1 << (precision - 1). Weights of up to 24 bits are stored in two parts,
// weight = 256 * high + low, so that vectors can multiply 16-bit numbers; the sum stays exact.
#pragma once

#include <cstdint>
#include <vector>

#include "megalith/media/image.h"
#include "megalith/media/resample.h"

namespace megalith::media {

// The taps of every output position along one axis.
struct FilterTaps {
  int64_t taps = 0;              // per output position, even; the last ones may have weight 0
  int precision = 0;             // bits after the point
  bool wide = false;             // whether `low` is used
  std::vector<int64_t> first;    // [out]: first input position
  std::vector<int64_t> count;    // [out]: positions that exist
  std::vector<int32_t> weights;  // [out, taps]
  std::vector<int16_t> high;     // [out, taps]: weight, or weight >> 8 when wide
  std::vector<int16_t> low;      // [out, taps]: weight & 255 when wide
};

// Returns the taps that bring `in_size` positions to `out_size`.
FilterTaps make_taps(int64_t in_size, int64_t out_size, Resampler resampler);

// Filters rows: in [y, x, c] -> out [y, x', c]. `vectors` allows AVX2.
void filter_rows(const Image& in, Image& out, const FilterTaps& taps, bool vectors = true);
// Filters columns: in [y, x, c] -> out [y', x, c].
void filter_columns(const Image& in, Image& out, const FilterTaps& taps, bool vectors = true);

}  // namespace megalith::media
