// Adam over stored state on CUDA, in one pass. A thread has 4 elements of every array; 16 neighbouring threads have the
// 64 elements that share a scale, and find the new one by shuffles.
//
//   load     the bits of all arrays, 4 to 16 bytes each, before anything depends on them
//   decode   to fp32 by the array's form
//   update   as over fp32 state (adam_cuda.cuh)
//   encode   by the array's form; the model's parameter is rounded from main as it was stored
//
// Forms are kernel arguments and not template parameters: all threads take the same branch, which costs little beside
// the memory, and 432 combinations of formats need one kernel. Bytes per element with bf16 moments and gradients and
// main parameters as halves: 10 read, 8 written; fp32 state moves 28.
#include "megalith/ops/update/adam_cuda.cuh"
#include "megalith/ops/update/stored_adam_internal.h"
#include "megalith/ops/update/stored_values_cuda.cuh"

namespace megalith::ops {

namespace {

constexpr int kUpdateThreads = 256;

// The bits of 4 elements: of fp32 all words, of 16 bits the first two, of fp8 the first. Halves have the lower ones in
// words 0 and 1, the upper ones in 2 and 3.
using FourRaw = Words<4>;

__device__ inline Words<2> load_two_words(const void* from, int64_t at) {
  return *reinterpret_cast<const Words<2>*>(static_cast<const uint16_t*>(from) + at);
}

__device__ inline FourRaw load_four(const StoredArray& a, int64_t at) {
  FourRaw raw{};
  if (a.form == StoredForm::kFp32) return load_raw<kPerThread>(static_cast<const float*>(a.values) + at);
  if (a.form == StoredForm::kScaledFp8) {
    raw.word[0] = *reinterpret_cast<const uint32_t*>(static_cast<const uint8_t*>(a.values) + at);
    return raw;
  }
  const Words<2> low = load_two_words(a.values, at);
  raw.word[0] = low.word[0];
  raw.word[1] = low.word[1];
  if (a.form == StoredForm::kHalves) {
    const Words<2> high = load_two_words(a.high, at);
    raw.word[2] = high.word[0];
    raw.word[3] = high.word[1];
  }
  return raw;
}

__device__ inline float load_scale(const StoredArray& a, int64_t at) {
  return a.scales == nullptr ? 1.0F : a.scales[at / kScaleBlock];
}

template <typename T>
__device__ inline void unpack_two_words(const FourRaw& raw, float (&x)[kPerThread]) {
  split(raw.word[0], static_cast<const T*>(nullptr), x);
  split(raw.word[1], static_cast<const T*>(nullptr), x + 2);
}

__device__ inline void decode_fp8(uint32_t word, float (&x)[kPerThread]) {
#pragma unroll
  for (int j = 0; j < kPerThread; ++j)
    x[j] = to_float(__half(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(word >> (8 * j)), __NV_E4M3)));
}

// Half a word as the bits of an element.
__device__ inline uint16_t sixteen_bits(const FourRaw& raw, int j) {
  return static_cast<uint16_t>(raw.word[j / 2] >> (16 * (j % 2)));
}

__device__ inline void decode(StoredForm form, const FourRaw& raw, float scale, float (&x)[kPerThread]) {
  switch (form) {
    case StoredForm::kFp32:
#pragma unroll
      for (int j = 0; j < kPerThread; ++j) x[j] = __uint_as_float(raw.word[j]);
      return;
    case StoredForm::kBf16:
      return unpack_two_words<__nv_bfloat16>(raw, x);
    case StoredForm::kFp16:
      return unpack_two_words<__half>(raw, x);
    case StoredForm::kHalves:
#pragma unroll
      for (int j = 0; j < kPerThread; ++j)
        x[j] = join_halves(sixteen_bits(raw, 4 + j), static_cast<int16_t>(sixteen_bits(raw, j)));
      return;
    case StoredForm::kScaledFp16:
      unpack_two_words<__half>(raw, x);
      break;
    case StoredForm::kScaledFp8:
      decode_fp8(raw.word[0], x);
      break;
    case StoredForm::kAbsent:
      return;
  }
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) x[j] *= scale;
}

// Stores x in a scaled form; fp16, which main may have, replaces x by the numbers that were stored. Threads beyond the
// end only take part in the search for the scale.
template <typename T>
__device__ inline void encode_scaled(float (&x)[kPerThread], const StoredArray& a, int64_t at, bool inside) {
  const float scale = scale_of(amax_of_scale(x), static_cast<const T*>(nullptr));
  if (!inside) return;
  if (at % kScaleBlock == 0) a.scales[at / kScaleBlock] = scale;
  const float inverse = __fdiv_rn(1.0F, scale);
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) x[j] *= inverse;
  write_four(x, static_cast<T*>(a.values) + at);
  if constexpr (std::is_same_v<T, __half>) {
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) x[j] = rounded_to<__half>(x[j]) * scale;
  }
}

__device__ inline void encode_halves(const float (&x)[kPerThread], const StoredArray& a, int64_t at) {
  Pack<uint16_t, kPerThread> upper;
  Pack<int16_t, kPerThread> lower;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) split_halves(x[j], upper.item[j], lower.item[j]);
  *reinterpret_cast<Pack<uint16_t, kPerThread>*>(a.high + at) = upper;
  *reinterpret_cast<Pack<int16_t, kPerThread>*>(static_cast<int16_t*>(a.values) + at) = lower;
}

__device__ inline void encode(float (&x)[kPerThread], const StoredArray& a, int64_t at, bool inside) {
  if (a.form == StoredForm::kScaledFp16) return encode_scaled<__half>(x, a, at, inside);
  if (a.form == StoredForm::kScaledFp8) return encode_scaled<__nv_fp8_storage_t>(x, a, at, inside);
  if (!inside) return;
  if (a.form == StoredForm::kFp32) store<kPerThread>(x, static_cast<float*>(a.values) + at);
  if (a.form == StoredForm::kBf16) store<kPerThread>(x, static_cast<__nv_bfloat16*>(a.values) + at);
  if (a.form == StoredForm::kFp16) store<kPerThread>(x, static_cast<__half*>(a.values) + at);
  if (a.form == StoredForm::kHalves) encode_halves(x, a, at);
}

// Elements [from, to), both multiples of 64, are read and written; those in [begin, end) are updated. The others share
// a scale with them, or are padding: what they are written is what was read.
struct UpdateRange {
  int64_t from, to, begin, end;
};

// The elements of a thread as memory holds them.
struct RawElements {
  FourRaw main, grad, first, second;
  float main_scale, first_scale, second_scale;

  __device__ void read(const StoredAdamArrays& a, int64_t at) {
    main = load_four(a.main, at), grad = load_four(a.grad, at), first = load_four(a.first, at),
    second = load_four(a.second, at);
    main_scale = load_scale(a.main, at), first_scale = load_scale(a.first, at), second_scale = load_scale(a.second, at);
  }
};

// The numbers that they stand for; zeros beyond the end.
struct Elements {
  float value[kPerThread] = {}, g[kPerThread] = {}, first[kPerThread] = {}, second[kPerThread] = {};

  __device__ void take(const StoredAdamArrays& a, const RawElements& raw) {
    decode(a.main.form, raw.main, raw.main_scale, value);
    decode(a.grad.form, raw.grad, 1, g);
    decode(a.first.form, raw.first, raw.first_scale, first);
    decode(a.second.form, raw.second, raw.second_scale, second);
  }
  // Updates and stores them.
  __device__ void update(const StoredAdamArrays& a, const UpdateRange& range, int64_t at, AdamFactors f,
                         const RunTable& table) {
    const bool inside = at < range.to;
    if (at >= range.begin && at < range.end) {
      table.take_factors(at, f);
      adam_elements(value, g, first, second, f);
    }
    encode(first, a.first, at, inside);
    encode(second, a.second, at, inside);
    encode(value, a.main, at, inside);
    encode(value, a.param, at, inside);
  }
};

__global__ void stored_adam_kernel(const __grid_constant__ StoredAdamArrays a, UpdateRange range, AdamFactors f,
                                   const __grid_constant__ RunTable table) {
  if (!passes(a.gate, f.grad_scale)) return;  // the whole grid
  const int64_t at = range.from + (int64_t{blockIdx.x} * kUpdateThreads + threadIdx.x) * kPerThread;
  Elements x;
  if (at < range.to) {
    RawElements raw;
    raw.read(a, at);
    x.take(a, raw);
  }
  x.update(a, range, at, f, table);
}

// The same on few multiprocessors: a block for each, which walks over all elements. All threads of a block make as many
// steps, since they look for scales together.
__global__ __launch_bounds__(kConfinedThreads,
                             1) void confined_stored_adam_kernel(const __grid_constant__ StoredAdamArrays a,
                                                                 UpdateRange range, AdamFactors f,
                                                                 const __grid_constant__ RunTable table) {
  if (!passes(a.gate, f.grad_scale)) return;
  constexpr int64_t kEach = int64_t{kConfinedThreads} * kPerThread;
  const int64_t step = gridDim.x * kEach;
  for (int64_t first = range.from + blockIdx.x * kEach; first < range.to; first += 2 * step) {
    const int64_t at = first + int64_t{threadIdx.x} * kPerThread, next = at + step;
    RawElements raw{}, raw_next{};
    if (at < range.to) raw.read(a, at);
    if (next < range.to) raw_next.read(a, next);
    Elements x, y;
    if (at < range.to) x.take(a, raw);
    x.update(a, range, at, f, table);
    if (next < range.to) y.take(a, raw_next);
    y.update(a, range, next, f, table);
  }
}

}  // namespace

void stored_adam_cuda(const StoredAdamArrays& a, const AdamSettings& settings, std::span<const UpdateRun> runs,
                      void* stream) {
  for (size_t first = 0; first < runs.size(); first += RunTable::kMost) {
    const std::span<const UpdateRun> own = runs.subspan(first, std::min<size_t>(RunTable::kMost, runs.size() - first));
    // Ends may lie inside a vector: its other elements are padding, which Adam leaves at zero.
    UpdateRange range{.begin = own.front().begin, .end = own.back().end};
    range.from = range.begin / kScaleBlock * kScaleBlock;
    range.to = (range.end + kScaleBlock - 1) / kScaleBlock * kScaleBlock;
    const auto start = [&](auto kernel, const Launch& how) {
      launch("stored_adam", kernel, how, a, range, adam_factors(settings, own.front().scalars),
             run_table(settings, own));
    };
    const int64_t per_block = int64_t{kUpdateThreads} * kPerThread;
    const auto blocks = static_cast<unsigned>((range.to - range.from + per_block - 1) / per_block);
    if (a.multiprocessors > 0)
      start(confined_stored_adam_kernel, {static_cast<unsigned>(a.multiprocessors), kConfinedThreads, stream});
    else
      start(stored_adam_kernel, {blocks, kUpdateThreads, stream});
  }
}

}  // namespace megalith::ops
