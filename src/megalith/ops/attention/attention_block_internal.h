// Shared by the two CPU flash kernels: the fp32 one (attention_flash_cpu.cc) and the bf16 one on matrix registers
// (attention_amx_cpu.cc). For those two files only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "megalith/ops/attention/attention_flash_internal.h"
#include "megalith/ops/gemm/small_gemm.h"
#include "megalith/ops/kernel/cpu_math.h"

namespace megalith::ops::flash {

inline constexpr int64_t kQ = kFlashQueries;  // also the distance between rows of transposed scores
inline constexpr float kNoScore = -1e30F;     // below every score, but finite, so that differences are not NaN

// Transposes [rows, columns] into [columns, rows], each with its own distance between rows, in squares of 4 x 4; rows
// and columns are multiples of 4. Works for any four-byte elements, since bits are only moved.
struct Transpose {
  MEGALITH_ALWAYS_INLINE static void run(const float* from, int64_t distance, int64_t rows, int64_t columns, float* to,
                                         int64_t to_distance) {
    using Four = float __attribute__((vector_size(16), aligned(4), may_alias));
    for (int64_t i = 0; i < rows; i += 4) {
      for (int64_t j = 0; j < columns; j += 4) {
        const float* x = from + i * distance + j;
        const Four r0 = *reinterpret_cast<const Four*>(x), r1 = *reinterpret_cast<const Four*>(x + distance);
        const Four r2 = *reinterpret_cast<const Four*>(x + 2 * distance),
                   r3 = *reinterpret_cast<const Four*>(x + 3 * distance);
        const Four a = __builtin_shufflevector(r0, r1, 0, 4, 1, 5), b = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
        const Four c = __builtin_shufflevector(r0, r1, 2, 6, 3, 7), d = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
        float* y = to + j * to_distance + i;
        *reinterpret_cast<Four*>(y) = __builtin_shufflevector(a, b, 0, 1, 4, 5);
        *reinterpret_cast<Four*>(y + to_distance) = __builtin_shufflevector(a, b, 2, 3, 6, 7);
        *reinterpret_cast<Four*>(y + 2 * to_distance) = __builtin_shufflevector(c, d, 0, 1, 4, 5);
        *reinterpret_cast<Four*>(y + 3 * to_distance) = __builtin_shufflevector(c, d, 2, 3, 6, 7);
      }
    }
  }
};

// Stores rows as T: to[i] = from[i] · factors[i], or · factor if `factors` is nullptr.
template <typename T>
struct StoreRows {
  MEGALITH_ALWAYS_INLINE static void run(const float* from, int64_t padded, int64_t rows, int64_t columns, T* to,
                                         int64_t distance, const float* factors, float factor) {
    for (int64_t i = 0; i < rows; ++i) {
      const float* MEGALITH_RESTRICT x = from + i * padded;
      T* MEGALITH_RESTRICT y = to + i * distance;
      const float f = factors != nullptr ? factors[i] : factor;
      for (int64_t j = 0; j < columns; ++j) y[j] = from_acc<T>(x[j] * f);
    }
  }
};

// x[i] *= factors[i]: rescales the running sums of every query when its maximum has grown.
struct ScaleRows {
  MEGALITH_ALWAYS_INLINE static void run(float* x, int64_t rows, int64_t columns, const float* factors) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) x[i * columns + j] *= factors[i];
  }
};

// delta[i] = Σ_j out[i, j] · grad_out[i, j], which equals Σ_k P[i, k] dP[i, k] over all keys: so that backward knows
// the sum before it has seen the keys.
template <typename T>
struct RowDots {
  MEGALITH_ALWAYS_INLINE static void run(const T* a, int64_t a_distance, const T* b, int64_t b_distance, int64_t rows,
                                         int64_t columns, float* dots) {
    for (int64_t i = 0; i < rows; ++i) {
      const T* MEGALITH_RESTRICT x = a + i * a_distance;
      const T* MEGALITH_RESTRICT y = b + i * b_distance;
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t j = 0; j < columns; ++j) dot += to_acc(x[j]) * to_acc(y[j]);
      dots[i] = dot;
    }
  }
};

// Hands out scratch memory piece by piece, aligned to cache lines. With nullptr it only counts.
// take(n) returns room for n floats, take_as<T>(n) for n elements of T.
class Scratch {
 public:
  explicit Scratch(float* memory) : memory_(memory) {}
  float* take(int64_t floats) { return take_as<float>(floats); }
  template <typename T>
  T* take_as(int64_t count) {
    const int64_t begin = used_;
    used_ += gemm_padded((count * static_cast<int64_t>(sizeof(T)) + 3) / 4);
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + begin);
  }
  int64_t used() const { return used_; }

 private:
  float* memory_;
  int64_t used_ = 0;
};

// Returns the first channel of a head of a token.
template <typename T>
T* at(const FlashHeads<T>& heads, int64_t head, int64_t token) {
  return heads.data + head * heads.head + token * heads.token;
}

// A unit of work: the queries [first, first + rows) of one head, and the keys that at least one of them sees. Masks are
// bands around the diagonal, which products skip (GemmBand).
struct Block {
  int64_t head;
  int64_t first, rows;
  int64_t padded;              // rows, padded for small_gemm
  int64_t key_begin, key_end;  // visible keys
  int64_t offset;              // query i is token i + offset of the keys

  Block(const FlashShape& s, int64_t index)
      : head(index / s.blocks_per_head()),
        first(index % s.blocks_per_head() * kQ),
        rows(std::min(kQ, s.queries - first)),
        padded(gemm_padded(rows)),
        key_begin(s.window > 0 ? std::max<int64_t>(0, first + s.keys - s.queries - s.window + 1) : 0),
        key_end(s.causal ? first + rows + s.keys - s.queries : s.keys),
        offset(s.keys - s.queries) {}

  // The mask as a band whose rows are the keys from `key` on and whose columns are the queries that see them: row i is
  // key `key` + i, column j query `first` + j, and a causal query sees the key if j >= i + shift.
  GemmBand keys_to_queries(const FlashShape& s, int64_t key) const {
    const int64_t shift = key - first - offset;
    return {s.causal ? shift : -GemmBand::kFar, s.window > 0 ? shift + s.window : GemmBand::kFar};
  }
  // The mask as a band whose rows are the queries and whose columns or depth are the keys from `key` on that they see.
  GemmBand queries_to_keys(const FlashShape& s, int64_t key) const {
    const int64_t shift = key - first - offset;
    return {s.window > 0 ? 1 - shift - s.window : -GemmBand::kFar, s.causal ? 1 - shift : GemmBand::kFar};
  }
};

// Stores the gradients of keys or values: as partial sums in fp32 where the caller adds several, otherwise as T.
template <typename T>
void store_grads(const float* grads, int64_t rows, int64_t columns, float factor, const FlashHeads<T>& to,
                 const FlashHeads<float>& partial) {
  const float* none = nullptr;
  if (partial.data != nullptr)
    run_kernel<StoreRows<float>>(grads, gemm_padded(columns), rows, columns, partial.data, partial.token, none, factor);
  else
    run_kernel<StoreRows<T>>(grads, gemm_padded(columns), rows, columns, to.data, to.token, none, factor);
}

}  // namespace megalith::ops::flash
