// Attention in parts: each part covers some queries and some of their keys; parts are merged by their log-sum-exp.
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

// A selection of rows of a tensor: the concatenation of ranges, all read forwards or all read backwards.
class Rows {
 public:
  Rows(const std::vector<TokenRange>& ranges, bool backwards, at::Device device);

  int64_t count() const { return count_; }
  at::Tensor of(const at::Tensor& tensor, int64_t dim = 0) const;  // a view if the rows are contiguous, else a copy
  void write(const at::Tensor& tensor, const at::Tensor& values, int64_t dim = 0) const;
  void add(const at::Tensor& tensor, const at::Tensor& values, int64_t dim = 0) const;

 private:
  int64_t first_ = 0, count_ = 0;
  at::Tensor index_;  // undefined if the rows are first_ … first_ + count_ - 1
};

// One call of the attention kernel: the queries of range i attend to the keys of range i. Ranges are not empty.
struct AttentionPart {
  enum class Mask {
    kAll,            // every query sees all of its keys
    kCausal,         // the last query sees all of its keys, the one before it all but the last, …, within the window
    kCausalFromEnd,  // the first query sees all of its keys, the next all but the first, …: the far edge of a window
  };
  Mask mask = Mask::kAll;
  std::vector<TokenRange> queries, keys;
};

// A part in the form that the kernels take: rows and lengths are on the device. A mask kCausalFromEnd is a causal mask
// over reversed rows.
struct PreparedPart {
  AttentionPart::Mask mask;
  ops::SequenceLayout query_layout, key_layout;
  Rows queries, keys;

  PreparedPart(const AttentionPart& part, at::Device device);
  // Returns the options of this part from those of the whole.
  ops::AttentionOptions options(const ops::AttentionOptions& whole) const;
};
// Prepares all parts. Their rows and lengths are the same for every layer, so a layout should keep the result
// (SequenceLayout::derived).
std::vector<PreparedPart> prepared(const std::vector<AttentionPart>& parts, at::Device device);

// Returns the parts in which queries of slice `rank` (of `ranks`) attend to keys of slice `owner`. A window of 0 means
// no window.
std::vector<AttentionPart> ring_parts(const ops::SequenceLayout& slice, int rank, int owner, int ranks, int64_t window);
// The same for the gathered keys of all ranks, in the order of the whole sequences.
std::vector<AttentionPart> gathered_parts(const ops::SequenceLayout& slice, int rank, int ranks);

// Computes parts one by one and merges their outputs. Used by one thread.
class PartialAttention {
 public:
  // `options` must be causal; its window applies to parts with the mask kCausal.
  PartialAttention(at::Tensor q, int64_t value_size, ops::AttentionOptions options);

  void add(const std::vector<PreparedPart>& parts, const at::Tensor& keys_values);  // [u, g, d+e]
  // Returns out [t, n, e] in q's dtype and log-sum-exp [n, t]. Every query must have been in some part.
  ops::AttentionResult result() const;

 private:
  at::Tensor q_;
  int64_t value_size_;
  ops::AttentionOptions options_;
  at::Tensor out_, log_sum_exp_;  // fp32 (fp64 for fp64)
};

// Computes the gradients of PartialAttention, part by part.
class PartialAttentionBackward {
 public:
  PartialAttentionBackward(at::Tensor grad_out, at::Tensor q, ops::AttentionResult result,
                           ops::AttentionOptions options);

  // Adds the parts to grad_q; returns their share of the gradient of the keys and values: fp32 [u, g, d+e], zeros if
  // there are no parts.
  at::Tensor add(const std::vector<PreparedPart>& parts, const at::Tensor& keys_values);
  at::Tensor grad_q() const { return grad_q_.to(q_.scalar_type()); }

 private:
  at::Tensor grad_out_, q_;
  ops::AttentionResult result_;
  ops::AttentionOptions options_;
  at::Tensor grad_q_;  // fp32
};

}  // namespace megalith::nn
