// 4-bit numbers on CUDA.
//
//   quantize   16 neighbouring threads have the 64 numbers of a block, 4 each. The largest magnitude takes four
//              shuffles; a thread then writes 2 bytes of codes, the first of the 16 the scale.
//              Traffic: reads 2 or 4 bytes per number, writes 0.56
//
//   read       a thread has 8 numbers in a row of the result, one 32-bit word of codes where rows are multiples of 8:
//              word   | 0 1 | 2 3 | 4 5 | 6 7 |     bytes, the first number of each in its upper half
//              Traffic: reads 0.52 bytes per number, writes 2 or 4
//
// The 16 values lie in shared memory, each in a bank of its own. Scales are read through the cache: 8 threads in a row
// have the same one. Products and sums are rounded one by one (__fmul_rn, __fadd_rn), so that the numbers are those of
// the CPU to the last bit.
#include "megalith/ops/kernel/cuda_math.cuh"
#include "megalith/ops/quantize/four_bit_internal.h"

namespace megalith::ops {

namespace {

constexpr int kFourBitThreads = 256;
constexpr int kQuantized = 4;  // numbers per thread when quantizing
constexpr int kGroup = 16;     // threads per block of numbers
constexpr int kRead = 8;       // numbers per thread when reading

// The limits are those of four_bit_internal.h: device code cannot index constant arrays of the host.
__device__ inline unsigned nf4_code(float x) {
  constexpr float limits[15] = {
      -0.8480964004993439F,  -0.6106329262256622F,   -0.4599952697753906F, -0.33967943489551544F, -0.23460740596055984F,
      -0.13791173323988914F, -0.045525018125772476F, 0.03979014977812767F, 0.1202552504837513F,   0.2035212516784668F,
      0.2920137718319893F,   0.3893125355243683F,    0.5016634166240692F,  0.6427869200706482F,   0.8614784181118011F};
  unsigned code = 0;
#pragma unroll
  for (int i = 0; i < 15; ++i) code += x > limits[i] ? 1U : 0U;
  return code;
}

__device__ inline unsigned fp4_code(float x) {
  constexpr float limits[7] = {0.00260417F, 0.0859375F, 0.20833333F, 0.29166667F, 0.4166667F, 0.583333F, 0.8333333F};
  const float size = fabsf(x);
  unsigned place = 0;
#pragma unroll
  for (int i = 0; i < 7; ++i) place += size > limits[i] ? 1U : 0U;
  // Codes by ascending magnitude, 4 bits each: 0 1 6 7 4 5 2 3.
  return (0x32547610U >> (4 * place) & 15U) + (x < 0 ? 8U : 0U);
}

// All threads of a warp take part in the shuffles, those beyond the end with zeros.
template <typename T>
__global__ void quantize_four_bit_kernel(const T* x, int64_t n, bool nf4, uint8_t* codes, float* scales) {
  const int64_t thread = int64_t{blockIdx.x} * kFourBitThreads + threadIdx.x, first = thread * kQuantized;
  float value[kQuantized];
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kQuantized; ++i) {
    value[i] = first + i < n ? to_float(x[first + i]) : 0.0F;
    largest = fmaxf(largest, fabsf(value[i]));
  }
#pragma unroll
  for (int lane = kGroup / 2; lane > 0; lane /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, lane));
  if (first >= n) return;
  if (thread % kGroup == 0) scales[thread / kGroup] = largest;
  const float inverse = __fdiv_rn(1.0F, fmaxf(largest, 1e-38F));
  unsigned code[kQuantized];
#pragma unroll
  for (int i = 0; i < kQuantized; ++i) {
    const float scaled = __fmul_rn(value[i], inverse);
    code[i] = nf4 ? nf4_code(scaled) : fp4_code(scaled);
  }
#pragma unroll
  for (int i = 0; i < kQuantized; i += 2)
    if (first + i < n) codes[(first + i) / 2] = static_cast<uint8_t>(code[i] << 4 | code[i + 1]);
}

// Returns the scale of a number of the rectangle.
__device__ inline float scale_of(const FourBitArrays& from, int64_t i, int64_t j) {
  const int64_t row = (from.first_row + i) * from.whole_columns, block = (row + from.first_column + j) / from.block;
  const int64_t at = from.scales_per_row > 0 ? i * from.scales_per_row + block - (row + from.first_column) / from.block
                                             : block - from.first_row * from.whole_columns / from.block;
  if (from.scales != nullptr) return from.scales[at];
  return __fadd_rn(__fmul_rn(from.map[from.scale_codes[at]], from.nested[block / 256]), from.offset);
}

// `whole_words`: the 8 numbers of every thread are one word of codes, have one scale, and are stored in pieces of 16
// bytes.
template <typename T, bool whole_words>
__global__ void read_four_bit_kernel(FourBitArrays from, FourBitSlice slice, T* to) {
  __shared__ float values[16];
  if (threadIdx.x < 16) values[threadIdx.x] = from.values[threadIdx.x];
  __syncthreads();
  const int64_t per_row = (slice.columns + kRead - 1) / kRead;
  const int64_t thread = int64_t{blockIdx.x} * kFourBitThreads + threadIdx.x;
  const int64_t i = thread / per_row, j = thread % per_row * kRead;
  if (i >= slice.rows) return;
  const int64_t row = slice.row + i, column = slice.column + j;
  const int64_t number = row * from.columns + column;  // in the rectangle
  T* out = to + i * slice.columns + j;
  if constexpr (whole_words) {
    const uint32_t word = *reinterpret_cast<const uint32_t*>(from.codes + number / 2);
    const float scale = scale_of(from, row, column);
    float result[kRead];
#pragma unroll
    for (int k = 0; k < kRead; ++k)
      result[k] = __fmul_rn(values[word >> (8 * (k / 2) + (k % 2 == 0 ? 4 : 0)) & 15U], scale);
    store_all<kRead>(result, out);
  } else {
    for (int64_t k = 0; k < kRead && j + k < slice.columns; ++k) {
      const unsigned byte = from.codes[(number + k) / 2];
      const unsigned code = (number + k) % 2 == 0 ? byte >> 4 : byte & 15U;
      out[k] = from_float<T>(__fmul_rn(values[code], scale_of(from, row, column + k)));
    }
  }
}

Launch launch_of(int64_t threads, void* stream) {
  return {static_cast<unsigned>((threads + kFourBitThreads - 1) / kFourBitThreads), kFourBitThreads, stream};
}

bool reads_whole_words(const FourBitArrays& from, const FourBitSlice& slice, const void* to) {
  const int64_t all = from.columns | from.first_column | from.whole_columns | from.block | slice.column | slice.columns;
  return all % kRead == 0 && reinterpret_cast<uintptr_t>(to) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(from.codes) % 4 == 0;
}

}  // namespace

void quantize_four_bit_cuda(c10::ScalarType dtype, const void* x, int64_t n, bool nf4, uint8_t* codes, float* scales,
                            void* stream) {
  if (n == 0) return;
  // Whole groups: the first thread of each writes the scale.
  const int64_t threads = (n + kGroup * kQuantized - 1) / (kGroup * kQuantized) * kGroup;
  for_dtype(dtype, [&]<typename T>(T) {
    launch("quantize_four_bit", quantize_four_bit_kernel<T>, launch_of(threads, stream), static_cast<const T*>(x), n,
           nf4, codes, scales);
  });
}

void read_four_bit_cuda(const FourBitArrays& from, const FourBitSlice& slice, c10::ScalarType dtype, void* to,
                        void* stream) {
  if (slice.rows == 0 || slice.columns == 0) return;
  const Launch how = launch_of(slice.rows * ((slice.columns + kRead - 1) / kRead), stream);
  const bool words = reads_whole_words(from, slice, to);
  for_dtype(dtype, [&]<typename T>(T) {
    launch("read_four_bit", words ? read_four_bit_kernel<T, true> : read_four_bit_kernel<T, false>, how, from, slice,
           static_cast<T*>(to));
  });
}

}  // namespace megalith::ops
