// The CPU flash kernel over raw pointers: one sequence and one key/value head at a time.
//
// Queries are taken in blocks of kFlashQueries. The scores of a block are computed transposed, [keys, queries]: so keys
// and values are read as they are in memory, only the queries of the block are transposed, and softmax runs over
// columns, side by side in vector lanes. Products skip what the causal mask and the window hide, so that a window w
// costs O(s·w). Scratch memory is that of one thread, so that it grows with the keys but not with the queries.
//
// Legend as in attention.h: n query heads, g key/value heads, d size of a query/key head, e size of a value head.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace megalith::ops {

inline constexpr int64_t kFlashQueries = 64;  // queries per block

// One sequence and one key/value head with its query heads.
struct FlashShape {
  int64_t queries = 0, keys = 0;  // tokens; if causal, keys >= queries
  int64_t group = 1;              // query heads that share the key/value head: n/g
  int64_t d = 0, e = 0;
  bool causal = true;
  int64_t window = 0;  // 0 means none
  float scale = 1;     // > 0

  int64_t blocks_per_head() const { return (queries + kFlashQueries - 1) / kFlashQueries; }
  // Units of work: query blocks of all heads of the group, head by head.
  int64_t blocks() const { return group * blocks_per_head(); }
};

// Some heads of a [tokens, heads, size] tensor, from the first token of the sequence on. Channels are contiguous.
template <typename T>
struct FlashHeads {
  T* data = nullptr;
  int64_t token = 0, head = 0;  // distances, in elements
};

// Arguments of a forward call.
template <typename T>
struct FlashForward {
  FlashShape shape;
  FlashHeads<const T> q;          // `group` heads
  FlashHeads<const T> k, v;       // one head
  FlashHeads<T> out;              // `group` heads
  FlashHeads<float> log_sum_exp;  // `group` heads, one float per token
};

// Arguments of a backward call.
template <typename T>
struct FlashBackward {
  FlashShape shape;
  FlashHeads<const T> q, out, grad_out;  // `group` heads
  FlashHeads<const T> k, v;              // one head
  FlashHeads<const float> log_sum_exp;   // `group` heads
  FlashHeads<T> grad_q;                  // `group` heads
  // The gradients of the blocks of this call only. A single call for all blocks writes grad_k and grad_v; several calls
  // write one pair of partial sums each, which the caller adds.
  FlashHeads<T> grad_k, grad_v;
  FlashHeads<float> partial_k, partial_v;  // used instead of grad_k and grad_v if not null
};

// Return the floats of scratch memory that a call needs, which grow with the number of keys.
int64_t flash_forward_scratch(const FlashShape& shape);
int64_t flash_backward_scratch(const FlashShape& shape);

// Compute the query blocks [begin, end) of shape.blocks(). T is float, BFloat16 or Half. Arithmetic is in fp32, except
// for BFloat16 if flash_amx_usable().
template <typename T>
void flash_forward(const FlashForward<T>& call, int64_t begin, int64_t end, float* scratch);
template <typename T>
void flash_backward(const FlashBackward<T>& call, int64_t begin, int64_t end, float* scratch);

// The same in bf16 on the matrix registers of the processor (amx_gemm.h): probabilities and their gradients are rounded
// to bf16 before they are multiplied, as in flash attention on GPUs; sums and softmax stay in fp32.
bool flash_amx_usable(const FlashShape& shape);
int64_t flash_amx_scratch(const FlashShape& shape);  // for either direction
void flash_forward_amx(const FlashForward<c10::BFloat16>& call, int64_t begin, int64_t end, float* scratch);
void flash_backward_amx(const FlashBackward<c10::BFloat16>& call, int64_t begin, int64_t end, float* scratch);

}  // namespace megalith::ops
