// The CUDA kernels of sort_choices.h, over raw pointers, on a cudaStream_t.
#pragma once

#include <cstdint>

namespace megalith::ops {

// Experts whose counts a block keeps.
inline constexpr int64_t kMostSortedExperts = 1024;
// ints that sort_choices_cuda needs for n choices.
int64_t sort_choices_workspace_cuda(int64_t n, int64_t experts);
// chosen [n], k for each token -> token [n], row [n], first [experts + 1].
void sort_choices_cuda(const int64_t* chosen, int64_t n, int64_t k, int64_t experts, int64_t* token, int64_t* row,
                       int64_t* first, int* workspace, void* stream);

}  // namespace megalith::ops
