// Kernels of permute.h over raw pointers. Legend as there.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace megalith::ops {

// Sizes of a call.
struct PermuteSizes {
  c10::ScalarType dtype;  // type of rows and tokens
  int64_t t, k, r, h;     // as in the legend
};

// y [r, h] = x[token]
void copy_rows_cpu(const PermuteSizes& sizes, const void* x, const int64_t* token, void* y);
// y [t, h] = residual + Σ_j w[i][j] rows[row[i][j]]; w acc [t, k] and residual [t, h] may be nullptr.
void sum_rows_cpu(const PermuteSizes& sizes, const void* rows, const void* w, const int64_t* row, const void* residual,
                  void* y);
// drows[row[i][j]] = w[i][j] dy[i]; dw[i][j] = dy[i] · rows[row[i][j]]. Does not write the fillers of drows.
void sum_rows_backward_cpu(const PermuteSizes& sizes, const void* rows, const void* w, const int64_t* row,
                           const void* dy, void* drows, void* dw);
// Sorts chosen [n], k per token, into token [n], row [n] and first [experts + 1]; stable.
void sort_choices_cpu(const int64_t* chosen, int64_t n, int64_t k, int64_t experts, int64_t* token, int64_t* row,
                      int64_t* first);

// CUDA twins (fp32, bf16, fp16; at most 64 copies per token in backward) on `stream`, a cudaStream_t.
void copy_rows_cuda(const PermuteSizes& sizes, const void* x, const int64_t* token, void* y, void* stream);
// copy_rows_cuda for maps in which every row is used: y[row[i][j]] = x[i], which reads x once instead of k times.
void spread_rows_cuda(const PermuteSizes& sizes, const void* x, const int64_t* row, void* y, void* stream);
void sum_rows_cuda(const PermuteSizes& sizes, const void* rows, const void* w, const int64_t* row, const void* residual,
                   void* y, void* stream);
void sum_rows_backward_cuda(const PermuteSizes& sizes, const void* rows, const void* w, const int64_t* row,
                            const void* dy, void* drows, void* dw, void* stream);

// Most experts of sort_choices_cuda, which keeps a count of each in the shared memory of a block.
inline constexpr int64_t kMostSortedExperts = 1024;
// Returns the number of ints in the workspace of sort_choices_cuda for n choices.
int64_t sort_choices_workspace_cuda(int64_t n, int64_t experts);
// The twin of sort_choices_cpu.
void sort_choices_cuda(const int64_t* chosen, int64_t n, int64_t k, int64_t experts, int64_t* token, int64_t* row,
                       int64_t* first, int* workspace, void* stream);

}  // namespace megalith::ops
