// Small bf16 matrix products on the matrix unit of newer x86_64 processors (AMX), beside small_gemm.h for fp32.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

#include "megalith/ops/gemm/small_gemm.h"

namespace megalith::ops {

// Rows, columns and depth come in multiples of this.
inline constexpr int64_t kAmxTile = 32;
inline constexpr int64_t amx_padded(int64_t n) { return (n + kAmxTile - 1) / kAmxTile * kAmxTile; }

// Whether this machine has it and the system lets us use it.
bool amx_available();

// While it lives, the calling thread's matrix registers are set up for amx_gemm.
class AmxSession {
 public:
  AmxSession();
  ~AmxSession();
  AmxSession(const AmxSession&) = delete;
  AmxSession& operator=(const AmxSession&) = delete;
};

// Two bf16 that stand above one another: (2i, j) in the lower half, (2i + 1, j) in the upper.
using Bf16Pair = uint32_t;

// c (+)= a · b, with a [m, k] and b [k, n] in bf16, c [m, n] in fp32. Bands as in SmallGemm.
struct AmxGemm {
  const c10::BFloat16* a;
  int64_t a_row;
  const Bf16Pair* b;  // [k/2, n]
  int64_t b_row;
  float* c;
  int64_t c_row;
  int64_t m, n, k;
  bool accumulate;
  GemmBand columns = {};
  GemmBand depth = {};
};

// Needs an AmxSession on this thread.
void amx_gemm(const AmxGemm& gemm);

}  // namespace megalith::ops
