// The kernels of rope.h, over raw pointers: they map the heads of every token, with a norm and a rotation on the
// way.
//
// Legend: t tokens, d head size, r rotated channels of a head.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

namespace megalith::ops {

struct HeadsShape {
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t tokens = 0;    // t
  int64_t head_dim = 0;  // d
};

// The angles of every token, fp32 [t, r/2] each. half 0: nothing rotates.
struct Rotation {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t half = 0;          // r/2
  bool interleaved = false;  // pairs are neighbours
  bool inverse = false;      // backward: rotates the other way
};

// Some heads of each token in a tensor [t, heads, d] whose channels are dense; strides in elements.
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

// A group of heads that is treated alike.
struct HeadGroup {
  HeadsIn in;
  HeadsOut out;
  int64_t heads = 0;
  bool rotate = true;
  const void* norm_weight = nullptr;  // acc [d]: RMSNorm of each head before the rotation; nullptr: none
  double epsilon = 0;
  // On CUDA only: norm_weight is given in dtype, not in acc; and what is added to it.
  bool raw_weight = false;
  float weight_shift = 0;
};
// out = rotation(norm(in)), all groups of a token at once.
void map_heads_cpu(const HeadsShape& shape, const Rotation& rotation, std::span<const HeadGroup> groups);

// The same way back for one group with a norm: from the gradient of `out` to that of `in`.
struct HeadGroupBackward {
  HeadsIn in;        // what forward read
  HeadsIn grad_out;  // gradient of what forward wrote
  HeadsOut grad_in;  // out
  int64_t heads = 0;
  const void* norm_weight = nullptr;  // acc [d]
  double epsilon = 0;
  void* grad_weight = nullptr;  // acc [d] out
  // On CUDA only: as in HeadGroup; and the type of grad_weight.
  bool raw_weight = false;
  float weight_shift = 0;
  c10::ScalarType grad_weight_dtype = c10::ScalarType::Float;
};
// `rotation` is the inverse one. Sums over tokens go by thread and then over the threads in order.
void map_heads_backward_cpu(const HeadsShape& shape, const Rotation& rotation, const HeadGroupBackward& group);

// The twins on CUDA (fp32, bf16, fp16), on a cudaStream_t. `workspace`: as many floats as
// map_heads_backward_workspace_cuda says.
void map_heads_cuda(const HeadsShape& shape, const Rotation& rotation, std::span<const HeadGroup> groups, void* stream);
int64_t map_heads_backward_workspace_cuda(const HeadsShape& shape);
void map_heads_backward_cuda(const HeadsShape& shape, const Rotation& rotation, const HeadGroupBackward& group,
                             float* workspace, void* stream);

// The same for query, key and value in one pass, where it can: heads of 64, 128 or 256 channels that rotate as a whole
// in halves, norms of query and key with weights of the heads' dtype. The value's gradient is copied; it has no norm.
struct QkvBackward {
  HeadGroupBackward part[3];
};
bool can_split_backward_cuda(const HeadsShape& shape, const Rotation& rotation, const QkvBackward& qkv);
int64_t split_backward_workspace_cuda(const HeadsShape& shape);
void split_backward_cuda(const HeadsShape& shape, const Rotation& rotation, const QkvBackward& qkv, float* workspace,
                         void* stream);

}  // namespace megalith::ops
