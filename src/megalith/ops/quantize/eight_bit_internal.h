// Kernels of eight_bit.h over raw pointers.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Half.h>

#include <cstdint>

namespace megalith::ops {

// Factor of a code times its scale: fp32(1/127), as in bitsandbytes.
inline constexpr float kEightBitStep = 7.874015718698502e-3F;

// The numbers to be read: `codes` and `scales` are those of the first row and column.
struct EightBitSlice {
  const int8_t* codes;
  const float* scales;
  int64_t stride;  // codes from one row to the next
  int64_t rows, columns;
};

// x [rows, columns] in fp16 -> codes [rows, columns], scales [rows].
void quantize_eight_bit_cpu(const c10::Half* x, int64_t rows, int64_t columns, int8_t* codes, float* scales);
// -> to [rows, columns] in `dtype`: fp32, bf16 or fp16.
void read_eight_bit_cpu(const EightBitSlice& from, c10::ScalarType dtype, void* to);

// The same on CUDA; `stream` is a cudaStream_t.
void quantize_eight_bit_cuda(const c10::Half* x, int64_t rows, int64_t columns, int8_t* codes, float* scales,
                             void* stream);
void read_eight_bit_cuda(const EightBitSlice& from, c10::ScalarType dtype, void* to, void* stream);

}  // namespace megalith::ops
