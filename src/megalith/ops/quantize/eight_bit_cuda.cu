// 8-bit numbers on CUDA.
//
//   quantize   a warp has a row, which it reads twice: for its largest magnitude, which lane 0 writes, and for codes.
//              lane   | 0 | 1 | … | 31 | 0 | 1 | …
//              Traffic: reads 2 bytes per number (the second time from the cache), writes 1
//
//   read       a thread has 8 numbers in a row of the result, two 32-bit words of codes where rows are multiples of 8.
//              Traffic: reads 1 byte per number, writes 2 or 4
//
// Quotients and products are rounded one by one (__fdiv_rn, __fmul_rn), so that codes and numbers are those of the CPU
// to the last bit.
#include "megalith/ops/kernel/cuda_math.cuh"
#include "megalith/ops/quantize/eight_bit_internal.h"

namespace megalith::ops {

namespace {

constexpr int kEightBitThreads = 256;
constexpr int kLanes = 32;
constexpr int kRead = 8;  // numbers per thread when reading

// Rows of a block: one per warp. The condition on `row` is the same for all lanes, which take part in the shuffles.
__global__ void quantize_eight_bit_kernel(const __half* x, int64_t rows, int64_t columns, int8_t* codes,
                                          float* scales) {
  const int64_t row = int64_t{blockIdx.x} * (kEightBitThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if (row >= rows) return;
  const __half* from = x + row * columns;
  float largest = 0;
  for (int64_t i = lane; i < columns; i += kLanes) largest = fmaxf(largest, fabsf(to_float(from[i])));
  largest = warp_max(largest);
  if (lane == 0) scales[row] = largest;
  const float factor = __fmul_rn(__fdiv_rn(1.0F, largest), 127.0F);
  for (int64_t i = lane; i < columns; i += kLanes) {
    const float scaled = __fmul_rn(to_float(from[i]), factor);
    codes[row * columns + i] = scaled == scaled ? static_cast<int8_t>(rintf(scaled)) : int8_t{0};  // NaN in zeros
  }
}

__device__ inline float number_of(int8_t code, float scale) {
  return __fmul_rn(__fmul_rn(static_cast<float>(code), scale), kEightBitStep);
}

// `whole_words`: the 8 codes of every thread are a pair of words, and its numbers are stored in pieces of 16 bytes.
template <typename T, bool whole_words>
__global__ void read_eight_bit_kernel(EightBitSlice from, T* to) {
  const int64_t per_row = (from.columns + kRead - 1) / kRead;
  const int64_t thread = int64_t{blockIdx.x} * kEightBitThreads + threadIdx.x;
  const int64_t row = thread / per_row, column = thread % per_row * kRead;
  if (row >= from.rows) return;
  const int8_t* codes = from.codes + row * from.stride + column;
  const float scale = from.scales[row];
  T* out = to + row * from.columns + column;
  if constexpr (whole_words) {
    const Words<2> words = *reinterpret_cast<const Words<2>*>(codes);
    float result[kRead];
#pragma unroll
    for (int k = 0; k < kRead; ++k)
      result[k] = number_of(static_cast<int8_t>(words.word[k / 4] >> (8 * (k % 4)) & 255U), scale);
    store_all<kRead>(result, out);
  } else {
    for (int64_t k = 0; k < kRead && column + k < from.columns; ++k) out[k] = from_float<T>(number_of(codes[k], scale));
  }
}

Launch launch_of(int64_t threads, void* stream) {
  return {static_cast<unsigned>((threads + kEightBitThreads - 1) / kEightBitThreads), kEightBitThreads, stream};
}

bool reads_whole_words(const EightBitSlice& from, const void* to) {
  return (from.columns | from.stride) % kRead == 0 && reinterpret_cast<uintptr_t>(to) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(from.codes) % kRead == 0;
}

}  // namespace

void quantize_eight_bit_cuda(const c10::Half* x, int64_t rows, int64_t columns, int8_t* codes, float* scales,
                             void* stream) {
  if (rows == 0) return;
  launch("quantize_eight_bit", quantize_eight_bit_kernel, launch_of(rows * kLanes, stream),
         reinterpret_cast<const __half*>(x), rows, columns, codes, scales);
}

void read_eight_bit_cuda(const EightBitSlice& from, c10::ScalarType dtype, void* to, void* stream) {
  if (from.rows == 0 || from.columns == 0) return;
  const Launch how = launch_of(from.rows * ((from.columns + kRead - 1) / kRead), stream);
  const bool words = reads_whole_words(from, to);
  for_dtype(dtype, [&]<typename T>(T) {
    launch("read_eight_bit", words ? read_eight_bit_kernel<T, true> : read_eight_bit_kernel<T, false>, how, from,
           static_cast<T*>(to));
  });
}

}  // namespace megalith::ops
