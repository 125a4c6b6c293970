// Kernels of stored_values.h over raw pointers; n is a multiple of kScaleBlock.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace megalith::ops {

// A scale is never smaller, so that neither its inverse nor the smallest element times it leaves the normal numbers.
inline constexpr float kSmallestScale = 0x1p-100F;

// `format` is Half or Float8_e4m3fn; values [n], scales [n / 64].
void read_scaled_cpu(c10::ScalarType format, const void* values, const float* scales, int64_t n, float* to);
void write_scaled_cpu(c10::ScalarType format, const float* from, int64_t n, void* values, float* scales);
// Joins and splits fp32 numbers: `high` is the bits of a bf16, rounded up where `low` is negative.
void join_halves_cpu(const uint16_t* high, const int16_t* low, int64_t n, float* to);
void split_halves_cpu(const float* from, int64_t n, uint16_t* high, int16_t* low);

// The same on CUDA; `stream` is a cudaStream_t, arrays start at multiples of 16 bytes.
void read_scaled_cuda(c10::ScalarType format, const void* values, const float* scales, int64_t n, float* to,
                      void* stream);
void write_scaled_cuda(c10::ScalarType format, const float* from, int64_t n, void* values, float* scales, void* stream);
void join_halves_cuda(const uint16_t* high, const int16_t* low, int64_t n, float* to, void* stream);
void split_halves_cuda(const float* from, int64_t n, uint16_t* high, int16_t* low, void* stream);

}  // namespace megalith::ops
