// Attention in parts: some queries with some of their keys, summed up by log-sum-exp.
//
// Legend: t tokens of a slice, u tokens of a block of keys and values, n query heads, g key/value heads, d size of a
// query/key head, e size of a value head. Keys and values lie side by side in one tensor [u, g, d+e].
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "megalith/layout/zigzag.h"
#include "megalith/ops/attention/attention.h"

namespace megalith::nn {

using layout::TokenRange;

// Some rows of a tensor: ranges one behind the other, each forwards or each backwards.
class Rows {
 public:
  Rows(const std::vector<TokenRange>& ranges, bool backwards, at::Device device);

  int64_t count() const { return count_; }
  at::Tensor of(const at::Tensor& tensor, int64_t dim = 0) const;  // a view where the rows lie together
  void write(const at::Tensor& tensor, const at::Tensor& values, int64_t dim = 0) const;
  void add(const at::Tensor& tensor, const at::Tensor& values, int64_t dim = 0) const;

 private:
  int64_t first_ = 0, count_ = 0;
  at::Tensor index_;  // undefined: rows first_ … first_ + count_ - 1
};

// queries[i] looks at keys[i]; ranges are not empty.
struct AttentionPart {
  enum class Mask {
    kAll,            // every query sees all of its keys
    kCausal,         // the last query sees all of its keys, the one before all but the last, … and the window's
    kCausalFromEnd,  // the first query sees all of its keys, the next all but the first, …: where a window ends
  };
  Mask mask = Mask::kAll;
  std::vector<TokenRange> queries, keys;
};

// What the queries of slice `rank` of `ranks` have to do with the block of keys of slice `owner`. Window 0: none.
std::vector<AttentionPart> ring_parts(const ops::SequenceLayout& slice, int rank, int owner, int ranks, int64_t window);
// The same with the keys of all ranks in the order of the whole.
std::vector<AttentionPart> gathered_parts(const ops::SequenceLayout& slice, int rank, int ranks);

// The sum of all parts. One thread.
class PartialAttention {
 public:
  // options: causal; its window is that of parts with the mask kCausal.
  PartialAttention(at::Tensor q, int64_t value_size, ops::AttentionOptions options);

  void add(const std::vector<AttentionPart>& parts, const at::Tensor& keys_values);  // [u, g, d+e]
  // out [t, n, e] in q's dtype, log-sum-exp [n, t]. Every query has been in some part.
  ops::AttentionResult result() const;

 private:
  at::Tensor q_;
  int64_t value_size_;
  ops::AttentionOptions options_;
  at::Tensor out_, log_sum_exp_;  // fp32 (fp64 for fp64)
};

// Its gradients, part by part.
class PartialAttentionBackward {
 public:
  PartialAttentionBackward(at::Tensor grad_out, at::Tensor q, ops::AttentionResult result,
                           ops::AttentionOptions options);

  // The parts' share of the gradient of the keys and values: fp32 [u, g, d+e], zeros without parts.
  at::Tensor add(const std::vector<AttentionPart>& parts, const at::Tensor& keys_values);
  at::Tensor grad_q() const { return grad_q_.to(q_.scalar_type()); }

 private:
  at::Tensor grad_out_, q_;
  ops::AttentionResult result_;
  ops::AttentionOptions options_;
  at::Tensor grad_q_;  // fp32
};

}  // namespace megalith::nn
