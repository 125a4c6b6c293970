// Adds the bf16 products of groups to their sums: dw = beta · dw + product. A thread has 8 elements of a group: 16
// bytes of products, 16 or 32 of sums; blockIdx.y is the group. Whether a group has rows is read on the device, so that
// the host need not know. Memory traffic: 2 bytes of product and twice 4 of sums per element. Measured on an H200
// against a copy of as many bytes (docs/gpu.md): 64 x 1024 x 2048 0.94.
//
//   group g    dw + g · elements, products + g · elements;   rows of the group: ends[g - 1] ... ends[g]
#include "megalith/ops/gemm/grouped_gemm_internal.h"
#include "megalith/ops/kernel/cuda_math.cuh"

namespace megalith::ops {

namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;

// A group without rows has no product (its memory is not written), so that its sums are only scaled. beta = 0 does not
// read the sums, which may be uninitialized then; beta = 1 leaves an empty group alone.
template <typename T>
__global__ void add_products_kernel(const __nv_bfloat16* products, const int* ends, T* dw, int64_t elements,
                                    float beta) {
  const int64_t column = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach;
  if (column >= elements) return;
  const int group = static_cast<int>(blockIdx.y);
  const bool empty = ends[group] == (group == 0 ? 0 : ends[group - 1]);
  if (empty && beta == 1) return;
  const int64_t at = group * elements + column;
  float sum[kEach] = {};
  if (beta != 0) load_all(dw + at, sum);
  if (!empty) {
    float product[kEach];
    load<kEach>(products + at, product);
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum[i] = beta * sum[i] + product[i];
  } else {
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum[i] *= beta;
  }
  store_all(sum, dw + at);
}

}  // namespace

void add_group_products_cuda(const GroupProducts& sizes, const void* products, const int* ends, void* dw,
                             void* stream) {
  if (sizes.groups * sizes.elements == 0) return;
  if (sizes.elements % kEach != 0 || !aligned(products) || !aligned(dw))
    fail_kernel("add_group_products", "a group is not a multiple of 16 bytes");
  const int64_t vectors = sizes.elements / kEach;
  const dim3 blocks(static_cast<unsigned>((vectors + kThreads - 1) / kThreads), static_cast<unsigned>(sizes.groups));
  for_dtype(sizes.dtype, [&]<typename T>(T) {
    launch("add_group_products", add_products_kernel<T>, {blocks, kThreads, stream},
           static_cast<const __nv_bfloat16*>(products), ends, static_cast<T*>(dw), sizes.elements,
           static_cast<float>(sizes.beta));
  });
}

}  // namespace megalith::ops
