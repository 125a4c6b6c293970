// A counting sort, in the order of the choices: each block counts its part, one block adds the counts up, each block
// then gives its part their rows.
#include "megalith/ops/kernel/cuda_math.cuh"
#include "megalith/ops/moe/sort_choices_internal.h"

namespace megalith::ops {

namespace {

constexpr int kThreads = 256;
constexpr int kPart = 1024;  // choices of a block

int64_t parts_of(int64_t n) { return (n + kPart - 1) / kPart; }

// counts [parts, experts]
__global__ void count_kernel(const int64_t* chosen, int64_t n, int experts, int* counts) {
  __shared__ int mine[kMostSortedExperts];
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) mine[e] = 0;
  __syncthreads();
  const int64_t begin = int64_t{blockIdx.x} * kPart;
  for (int64_t i = begin + threadIdx.x; i < min(begin + kPart, n); i += kThreads) atomicAdd(mine + chosen[i], 1);
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads)
    counts[int64_t{blockIdx.x} * experts + e] = mine[e];
}

// counts -> where each part starts among its expert's rows; first [experts + 1]. One block, a thread an expert.
__global__ void __launch_bounds__(kMostSortedExperts)
    add_up_kernel(int* counts, int parts, int experts, int64_t* first) {
  __shared__ int sums[kMostSortedExperts];
  const int e = static_cast<int>(threadIdx.x);
  int sum = 0;
  constexpr int kAtOnce = 8;  // loads under way
  for (int part = 0; part < parts && e < experts; part += kAtOnce) {
    int here[kAtOnce];
    int* at = counts + int64_t{part} * experts + e;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) here[i] = part + i < parts ? at[i * experts] : 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (part + i < parts) at[i * experts] = sum;
      sum += here[i];
    }
  }
  sums[e] = sum;
  for (int step = 1; step < static_cast<int>(blockDim.x); step *= 2) {
    __syncthreads();
    const int before = e >= step ? sums[e - step] : 0;
    __syncthreads();
    sums[e] += before;
  }
  if (e < experts) first[e + 1] = sums[e];
  if (e == 0) first[0] = 0;
}

__global__ void place_kernel(const int64_t* chosen, int64_t n, int k, int experts, const int* counts,
                             const int64_t* first, int64_t* token, int64_t* row) {
  __shared__ int mine[kPart];
  const int64_t begin = int64_t{blockIdx.x} * kPart;
  const int length = static_cast<int>(min(int64_t{kPart}, n - begin));
  for (int i = static_cast<int>(threadIdx.x); i < length; i += kThreads) mine[i] = static_cast<int>(chosen[begin + i]);
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) {
    int64_t next = first[e] + counts[int64_t{blockIdx.x} * experts + e];
    for (int i = 0; i < length; ++i) {
      if (mine[i] != e) continue;
      row[begin + i] = next;
      token[next++] = (begin + i) / k;
    }
  }
}

}  // namespace

int64_t sort_choices_workspace_cuda(int64_t n, int64_t experts) { return parts_of(n) * experts; }

void sort_choices_cuda(const int64_t* chosen, int64_t n, int64_t k, int64_t experts, int64_t* token, int64_t* row,
                       int64_t* first, int* workspace, void* stream) {
  if (n == 0) return;
  const auto parts = static_cast<unsigned>(parts_of(n));
  const int count = static_cast<int>(experts);
  const auto threads = static_cast<unsigned>((count + 31) / 32 * 32);
  launch("count_choices", count_kernel, {parts, kThreads, stream}, chosen, n, count, workspace);
  launch("add_up_choices", add_up_kernel, {1, threads, stream}, workspace, static_cast<int>(parts), count, first);
  launch("place_choices", place_kernel, {parts, kThreads, stream}, chosen, n, static_cast<int>(k), count, workspace,
         first, token, row);
}

}  // namespace megalith::ops
