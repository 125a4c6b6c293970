// Kernels of rope.h over raw pointers: they copy the heads of every token, normalizing and rotating them on the way.
//
// Legend: t tokens, d head size, r rotated channels of a head. "acc" is the type that a kernel computes in: fp64 for
// fp64, otherwise fp32.
//
//   channels of a head   | 0 … r/2 - 1 | r/2 … r - 1 | r … d - 1 |     pairs (i, i + r/2); the rest is copied
//   interleaved          | (0 1) (2 3) …             | r … d - 1 |     pairs (2i, 2i + 1)
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

namespace megalith::ops {

// Sizes that all groups of heads share.
struct HeadsShape {
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t tokens = 0;    // t
  int64_t head_dim = 0;  // d
};

// Angles of every token, fp32 [t, r/2] each. With half = 0 nothing rotates.
struct Rotation {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t half = 0;          // r/2
  bool interleaved = false;  // pairs are neighbors
  bool inverse = false;      // rotates by the negative angle, for backward
};

// Heads of each token in a tensor [t, heads, d] whose channels are contiguous; strides in elements. Heads are not
// copied into tensors of their own first: q, k and v are often ranges of columns of one tensor.
struct HeadsIn {
  const void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};
struct HeadsOut {
  void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

// A group of heads with the same treatment: those of query, key or value.
struct HeadGroup {
  HeadsIn in;
  HeadsOut out;
  int64_t heads = 0;
  bool rotate = true;
  const void* norm_weight = nullptr;  // acc [d]: RMSNorm of each head before the rotation; nullptr means no norm
  double epsilon = 0;
  bool raw_weight = false;  // CUDA only: norm_weight is given in dtype, not in acc
  float weight_shift = 0;   // CUDA only: added to norm_weight (1 for zero-centered weights)
};
// Writes out = rotation(norm(in)) for all groups, token by token.
void map_heads_cpu(const HeadsShape& shape, const Rotation& rotation, std::span<const HeadGroup> groups);

// Backward of one group with a norm: from the gradient of `out` to that of `in`. (Without a norm, backward is forward
// with the inverse rotation.)
struct HeadGroupBackward {
  HeadsIn in;        // input of forward
  HeadsIn grad_out;  // gradient of forward's output
  HeadsOut grad_in;  // out: gradient of forward's input
  int64_t heads = 0;
  const void* norm_weight = nullptr;  // acc [d]
  double epsilon = 0;
  void* grad_weight = nullptr;  // acc [d] out
  // CUDA only: as in HeadGroup, and the type of grad_weight.
  bool raw_weight = false;
  float weight_shift = 0;
  c10::ScalarType grad_weight_dtype = c10::ScalarType::Float;
};
// Computes grad_in and grad_weight; `rotation` is the inverse one. Sums over tokens per thread, then over the threads
// in order.
void map_heads_backward_cpu(const HeadsShape& shape, const Rotation& rotation, const HeadGroupBackward& group);

// CUDA twins (fp32, bf16, fp16) on `stream`, a cudaStream_t. `workspace` has map_heads_backward_workspace_cuda()
// floats.
void map_heads_cuda(const HeadsShape& shape, const Rotation& rotation, std::span<const HeadGroup> groups, void* stream);
// Floats of the workspace: one row of partial sums per block.
int64_t map_heads_backward_workspace_cuda(const HeadsShape& shape);
void map_heads_backward_cuda(const HeadsShape& shape, const Rotation& rotation, const HeadGroupBackward& group,
                             float* workspace, void* stream);

// Backward of query, key and value in one launch, for the usual models: heads of 64, 128 or 256 channels that rotate as
// a whole in halves, and norms of query and key with weights in the dtype of the heads. The gradient of value is
// copied. can_split_backward_cuda() says whether the arguments qualify.
struct QkvBackward {
  HeadGroupBackward part[3];  // query, key, value
};
bool can_split_backward_cuda(const HeadsShape& shape, const Rotation& rotation, const QkvBackward& qkv);
// Floats of its workspace: sums for query and key per block.
int64_t split_backward_workspace_cuda(const HeadsShape& shape);
void split_backward_cuda(const HeadsShape& shape, const Rotation& rotation, const QkvBackward& qkv, float* workspace,
                         void* stream);

}  // namespace megalith::ops
