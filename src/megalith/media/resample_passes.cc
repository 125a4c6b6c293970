// Plain loops for every machine, and AVX2 for RGB rows and for all columns; both give the same bytes.
//
// AVX2 multiplies 16-bit numbers in pairs and adds each pair into 32 bits (vpmaddwd), so taps come in pairs:
//
//   columns   bytes of two rows are interleaved, a0 b0 a1 b1 …, and multiplied by w0 w1 w0 w1 …
//   rows      a shuffle brings two neighboring pixels to r0 r1 g0 g1 b0 b1, likewise; one vector holds two image rows
#include "megalith/media/resample_internal.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace megalith::media {

namespace {

uint8_t to_byte(int32_t sum, int precision) { return static_cast<uint8_t>(std::clamp(sum >> precision, 0, 255)); }

template <int step>
void plain_rows(const Image& in, Image& out, const FilterTaps& taps, int64_t begin) {
  for (int64_t y = begin; y < in.height; ++y) {
    uint8_t* to = out.row(y);
    for (int64_t x = 0; x < out.width; ++x, to += step) {
      const auto at = static_cast<size_t>(x);
      const uint8_t* from = in.row(y) + taps.first[at] * step;
      const int32_t* weights = taps.weights.data() + x * taps.taps;
      int32_t sums[step];
      std::fill(sums, sums + step, 1 << (taps.precision - 1));
      for (int64_t j = 0; j < taps.count[at]; ++j)
        for (int c = 0; c < step; ++c) sums[c] += weights[j] * from[j * step + c];
      for (int c = 0; c < step; ++c) to[c] = to_byte(sums[c], taps.precision);
    }
  }
}

void plain_columns(const Image& in, Image& out, const FilterTaps& taps) {
  const size_t row = in.row_bytes();
  std::vector<int32_t> sums(row);
  for (int64_t y = 0; y < out.height; ++y) {
    const auto at = static_cast<size_t>(y);
    std::ranges::fill(sums, 1 << (taps.precision - 1));
    for (int64_t j = 0; j < taps.count[at]; ++j) {
      const uint8_t* from = in.row(taps.first[at] + j);
      const int32_t weight = taps.weights[static_cast<size_t>(y * taps.taps + j)];
      for (size_t i = 0; i < row; ++i) sums[i] += weight * from[i];
    }
    uint8_t* to = out.row(y);
    for (size_t i = 0; i < row; ++i) to[i] = to_byte(sums[i], taps.precision);
  }
}

#if defined(__x86_64__)
#define MEGALITH_MEDIA_AVX2 __attribute__((target("avx2")))

// Two neighboring 16-bit weights in every 32 bits.
MEGALITH_MEDIA_AVX2 inline __m256i weight_pair(const int16_t* weights) {
  int32_t pair = 0;
  std::memcpy(&pair, weights, sizeof pair);
  return _mm256_set1_epi32(pair);
}

// 8 sums -> (half + sum) >> precision, where the sum has a low part of its own when wide.
template <bool wide>
MEGALITH_MEDIA_AVX2 inline __m256i rounded(__m256i high, __m256i low, __m256i half, __m128i precision) {
  if constexpr (wide) high = _mm256_add_epi32(_mm256_slli_epi32(high, 8), low);
  return _mm256_sra_epi32(_mm256_add_epi32(high, half), precision);
}

// Two image rows at a time; `from` and `to` have the first of them. Reads up to 16 bytes past the last pixel of a row.
template <bool wide>
MEGALITH_MEDIA_AVX2 void avx2_two_rows(const uint8_t* from0, const uint8_t* from1, uint8_t* to0, uint8_t* to1,
                                       int64_t width, const FilterTaps& taps) {
  // Bytes 0 to 5 of each half are two pixels; -1 makes a zero, the upper byte of a 16-bit number.
  const __m256i first_pair = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,  //
                                              0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1);
  const __m256i second_pair = _mm256_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1,  //
                                               6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
  const __m256i half = _mm256_set1_epi32(1 << (taps.precision - 1));
  const __m128i precision = _mm_cvtsi32_si128(taps.precision);
  const int64_t pairs = taps.taps / 2;
  for (int64_t x = 0; x < width; ++x) {
    const int64_t offset = taps.first[static_cast<size_t>(x)] * 3;
    const uint8_t* a = from0 + offset;
    const uint8_t* b = from1 + offset;
    const int16_t* weights = taps.high.data() + x * taps.taps;
    const int16_t* low_weights = wide ? taps.low.data() + x * taps.taps : nullptr;
    __m256i high = _mm256_setzero_si256();
    __m256i low = _mm256_setzero_si256();
    int64_t j = 0;
    // Taps past `count` have weight 0; their bytes lie in the next rows or in the slack, and are left out where they
    // could lie past it.
    const int64_t used = std::min(pairs, (taps.count[static_cast<size_t>(x)] + 1) / 2);
    for (; j + 2 <= used; j += 2, a += 12, b += 12) {
      const __m256i bytes =
          _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a))),
                                  _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), 1);
      const __m256i one = _mm256_shuffle_epi8(bytes, first_pair);
      const __m256i two = _mm256_shuffle_epi8(bytes, second_pair);
      high = _mm256_add_epi32(high, _mm256_madd_epi16(one, weight_pair(weights + 2 * j)));
      high = _mm256_add_epi32(high, _mm256_madd_epi16(two, weight_pair(weights + 2 * j + 2)));
      if constexpr (wide) {
        low = _mm256_add_epi32(low, _mm256_madd_epi16(one, weight_pair(low_weights + 2 * j)));
        low = _mm256_add_epi32(low, _mm256_madd_epi16(two, weight_pair(low_weights + 2 * j + 2)));
      }
    }
    if (j < used) {
      const __m256i bytes =
          _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(a))),
                                  _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b)), 1);
      const __m256i one = _mm256_shuffle_epi8(bytes, first_pair);
      high = _mm256_add_epi32(high, _mm256_madd_epi16(one, weight_pair(weights + 2 * j)));
      if constexpr (wide) low = _mm256_add_epi32(low, _mm256_madd_epi16(one, weight_pair(low_weights + 2 * j)));
    }
    const __m256i sums = rounded<wide>(high, low, half, precision);
    const __m256i words = _mm256_packs_epi32(sums, sums);
    const __m256i bytes = _mm256_packus_epi16(words, words);
    const auto pixel0 = static_cast<uint32_t>(_mm256_extract_epi32(bytes, 0));
    const auto pixel1 = static_cast<uint32_t>(_mm256_extract_epi32(bytes, 4));
    std::memcpy(to0 + 3 * x, &pixel0, 2);
    std::memcpy(to1 + 3 * x, &pixel1, 2);
    to0[3 * x + 2] = static_cast<uint8_t>(pixel0 >> 16);
    to1[3 * x + 2] = static_cast<uint8_t>(pixel1 >> 16);
  }
}

template <bool wide>
MEGALITH_MEDIA_AVX2 void avx2_columns(const Image& in, Image& out, const FilterTaps& taps) {
  const __m256i half = _mm256_set1_epi32(1 << (taps.precision - 1));
  const __m128i precision = _mm_cvtsi32_si128(taps.precision);
  const size_t row = in.row_bytes();
  for (int64_t y = 0; y < out.height; ++y) {
    const auto at = static_cast<size_t>(y);
    const int16_t* weights = taps.high.data() + y * taps.taps;
    const int16_t* low_weights = wide ? taps.low.data() + y * taps.taps : nullptr;
    const uint8_t* top = in.row(taps.first[at]);
    uint8_t* to = out.row(y);
    const int64_t count = taps.count[at];
    // The last block may reach into the next row or the slack; what it writes there is overwritten or never read.
    for (size_t i = 0; i < row; i += 16) {
      __m256i high[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
      __m256i low[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
      for (int64_t j = 0; j < count; j += 2) {
        const uint8_t* from = top + static_cast<size_t>(j) * row + i;
        const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        // An odd last tap is paired with itself; the weight beside it is 0.
        const __m128i b = j + 1 < count ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + row)) : a;
        const __m256i left = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
        const __m256i right = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
        const __m256i pair = weight_pair(weights + j);
        high[0] = _mm256_add_epi32(high[0], _mm256_madd_epi16(left, pair));
        high[1] = _mm256_add_epi32(high[1], _mm256_madd_epi16(right, pair));
        if constexpr (wide) {
          const __m256i low_pair = weight_pair(low_weights + j);
          low[0] = _mm256_add_epi32(low[0], _mm256_madd_epi16(left, low_pair));
          low[1] = _mm256_add_epi32(low[1], _mm256_madd_epi16(right, low_pair));
        }
      }
      const __m256i left = rounded<wide>(high[0], low[0], half, precision);
      const __m256i right = rounded<wide>(high[1], low[1], half, precision);
      // Packing works in halves of a vector: put the quarters into order before the second time.
      const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(left, right), 0xd8);
      const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), bytes);
    }
  }
}

bool has_avx2() {
  static const bool found = __builtin_cpu_supports("avx2") != 0;
  return found;
}

// Returns how many rows it filtered; the rest is for plain_rows.
int64_t fast_rows(const Image& in, Image& out, const FilterTaps& taps) {
  if (in.mode != ImageMode::kRgb || !has_avx2()) return 0;
  for (int64_t y = 0; y < in.height; y += 2) {
    const int64_t other = std::min(y + 1, in.height - 1);  // an odd last row is filtered twice
    const auto filter = taps.wide ? avx2_two_rows<true> : avx2_two_rows<false>;
    filter(in.row(y), in.row(other), out.row(y), out.row(other), out.width, taps);
  }
  return in.height;
}

bool fast_columns(const Image& in, Image& out, const FilterTaps& taps) {
  if (!has_avx2()) return false;
  (taps.wide ? avx2_columns<true> : avx2_columns<false>)(in, out, taps);
  return true;
}
#else
int64_t fast_rows(const Image& /*in*/, Image& /*out*/, const FilterTaps& /*taps*/) { return 0; }
bool fast_columns(const Image& /*in*/, Image& /*out*/, const FilterTaps& /*taps*/) { return false; }
#endif

}  // namespace

void filter_rows(const Image& in, Image& out, const FilterTaps& taps, bool vectors) {
  const int64_t begin = vectors ? fast_rows(in, out, taps) : 0;
  switch (channels(in.mode)) {
    case 1:
      return plain_rows<1>(in, out, taps, begin);
    case 2:
      return plain_rows<2>(in, out, taps, begin);
    case 3:
      return plain_rows<3>(in, out, taps, begin);
    default:
      return plain_rows<4>(in, out, taps, begin);
  }
}

void filter_columns(const Image& in, Image& out, const FilterTaps& taps, bool vectors) {
  if (!vectors || !fast_columns(in, out, taps)) plain_columns(in, out, taps);
}

}  // namespace megalith::media
