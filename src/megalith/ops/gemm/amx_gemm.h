// Small bf16 matrix products on the matrix unit of newer x86_64 processors (AMX); small_gemm.h does the same in fp32.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

#include "megalith/ops/gemm/small_gemm.h"

namespace megalith::ops {

// Rows, columns and depth are multiples of this: a product is computed in blocks of 32 x 32, 32 deep per step.
inline constexpr int64_t kAmxTile = 32;
inline constexpr int64_t amx_padded(int64_t n) { return (n + kAmxTile - 1) / kAmxTile * kAmxTile; }

// Whether this machine has AMX and the system lets us use it. The first call asks Linux for permission.
bool amx_available();

// Sets up the matrix registers of the calling thread for amx_gemm, and releases them at its end.
class AmxSession {
 public:
  // Needs amx_available(). Sessions of one thread must not be nested: the first to end releases the registers.
  AmxSession();
  ~AmxSession();
  AmxSession(const AmxSession&) = delete;
  AmxSession& operator=(const AmxSession&) = delete;
};

// Two bf16 of one column, one above the other: element (2i, j) in the lower half, (2i + 1, j) in the upper.
using Bf16Pair = uint32_t;

// c (+)= a · b, with a [m, k] and b [k, n] in bf16, c [m, n] in fp32. Distances between rows are in elements; bands as
// in SmallGemm.
struct AmxGemm {
  const c10::BFloat16* a;
  int64_t a_row;
  const Bf16Pair* b;  // [k/2, n]
  int64_t b_row;
  float* c;
  int64_t c_row;
  int64_t m, n, k;  // multiples of kAmxTile
  bool accumulate;  // adds to c instead of overwriting it
  GemmBand columns = {};
  GemmBand depth = {};
};

// Computes one product; needs an AmxSession on this thread.
void amx_gemm(const AmxGemm& gemm);

}  // namespace megalith::ops
