// The kernels of permute.h, over raw pointers.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace megalith::ops {

struct PermuteSizes {
  c10::ScalarType dtype;  // of rows and tokens
  int64_t t, k, r, h;
};

// y [r, h] = x[token]
void copy_rows_cpu(const PermuteSizes& sizes, const void* x, const int64_t* token, void* y);
// y [t, h] = residual + Σ_j w[i][j] rows[row[i][j]]; w acc [t, k] and residual [t, h] may be nullptr.
void sum_rows_cpu(const PermuteSizes& sizes, const void* rows, const void* w, const int64_t* row, const void* residual,
                  void* y);
// drows[row[i][j]] = w[i][j] dy[i]; dw[i][j] = dy[i] · rows[row[i][j]]. w and dw are nullptr together; fillers of drows
// are not written.
void sum_rows_backward_cpu(const PermuteSizes& sizes, const void* rows, const void* w, const int64_t* row,
                           const void* dy, void* drows, void* dw);

// The twins on CUDA (fp32, bf16, fp16; at most 64 copies of a token in backward), on a cudaStream_t.
void copy_rows_cuda(const PermuteSizes& sizes, const void* x, const int64_t* token, void* y, void* stream);
// The same where every row stands in `row` [t, k]: y[row[i][j]] = x[i], which reads x once.
void spread_rows_cuda(const PermuteSizes& sizes, const void* x, const int64_t* row, void* y, void* stream);
void sum_rows_cuda(const PermuteSizes& sizes, const void* rows, const void* w, const int64_t* row, const void* residual,
                   void* y, void* stream);
void sum_rows_backward_cuda(const PermuteSizes& sizes, const void* rows, const void* w, const int64_t* row,
                            const void* dy, void* drows, void* dw, void* stream);

// Experts whose counts a block keeps.
inline constexpr int64_t kMostSortedExperts = 1024;
// ints that sort_choices_cuda needs for n choices.
int64_t sort_choices_workspace_cuda(int64_t n, int64_t experts);
// chosen [n], k for each token -> token [n], row [n], first [experts + 1].
void sort_choices_cuda(const int64_t* chosen, int64_t n, int64_t k, int64_t experts, int64_t* token, int64_t* row,
                       int64_t* first, int* workspace, void* stream);

}  // namespace megalith::ops
