// StoredValues: numbers that are computed in fp32 and kept between steps in fewer bits, such as the moments of Adam.
//
// Formats, and the fp32 number that an element stands for:
//
//   fp32, bf16    the element itself
//   fp16, fp8     element x scale; one fp32 scale for each 64 elements (fp8 is e4m3)
//   int16         the lower half of an fp32 number whose upper half, rounded, is a bf16 parameter: no bit is lost
//
// Scales follow TransformerEngine's FusedAdam, amax / 448 for fp8 and amax / (about half of the largest number) for
// fp16, with two differences. There is one for each 64 elements instead of one per tensor: blocks of 64 never span two
// parameters and are never cut by a shard, so the numbers do not depend on the number of shards, and one pass over
// memory both finds amax and rounds. And scales are rounded up to 16 significant bits (fp8) or to a power of two
// (fp16), which makes element x scale exact in fp32. So writing what was read changes nothing, and a checkpoint in fp32
// restores the state bit for bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith::ops {

inline constexpr int64_t kScaleBlock = 64;  // elements that share a scale

// Flat [n] with n a multiple of kScaleBlock, contiguous.
struct StoredValues {
  at::Tensor values;    // [n] fp32, bf16, fp16, Float8_e4m3fn, or int16: see above
  at::Tensor scales{};  // fp32 [n / 64], with fp16 and fp8; zero values may have zero scales
  at::Tensor high{};    // bf16 [n], with int16; may be on another device

  bool is_fp32() const { return values.scalar_type() == at::kFloat; }
  // The elements are the numbers, rounded: a copy into `values` stores them.
  bool is_direct() const { return !scales.defined() && !high.defined(); }
  int64_t numel() const { return values.numel(); }
  int64_t bytes() const;  // without `high`, which belongs to the model
  // Returns views of elements [begin, end), both multiples of kScaleBlock unless is_direct().
  StoredValues slice(int64_t begin, int64_t end) const;
};

// Whether numbers of this format have scales.
inline bool has_scales(at::ScalarType format) { return format == at::kHalf || format == at::kFloat8_e4m3fn; }
// Bytes per element in this format, scales included.
double stored_bytes(at::ScalarType format);

// Writes the numbers to `to`, fp32 [n].
void read_values(const StoredValues& from, const at::Tensor& to);
// Stores `from`, fp32 [n], rounding to the nearest. With int16 it also writes `high`, the nearest bf16 (ties away from
// zero).
void write_values(const at::Tensor& from, const StoredValues& to);

}  // namespace megalith::ops
