// Merging parts of a softmax. A part returns its output o, normalized over its own keys, and its log-sum-exp l. With L
// and O those of all parts so far:
//
//   L' = log(exp(L) + exp(l));   O' = O exp(L - L') + o exp(l - L')
//
// which starts from L = -∞, O = 0. Sums are kept in fp32, so that the result does not degrade with the number of parts.
// In backward the kernel derives the probabilities from the final L, so that the gradients of the parts simply add up.
#include <ATen/ATen.h>

#include <limits>

#include "megalith/nn/context_parallel/attention_parts_internal.h"
#include "megalith/ops/kernel/host_values.h"

namespace megalith::nn {

namespace {

using Mask = AttentionPart::Mask;

// Packs the ranges: each becomes a sequence of its own.
ops::SequenceLayout layout_of(const std::vector<TokenRange>& ranges) {
  std::vector<int64_t> lengths;
  for (const TokenRange& range : ranges) lengths.push_back(range.end - range.begin);
  return ops::SequenceLayout::packed(lengths);
}

at::ScalarType sum_type(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// [n, s] -> [s, n, 1], to scale rows of an output.
at::Tensor by_row(const at::Tensor& weights) { return weights.t().unsqueeze(-1); }

}  // namespace

PreparedPart::PreparedPart(const AttentionPart& part, at::Device device)
    : mask(part.mask),
      query_layout(layout_of(part.queries)),
      key_layout(layout_of(part.keys)),
      queries(part.queries, part.mask == Mask::kCausalFromEnd, device),
      keys(part.keys, part.mask == Mask::kCausalFromEnd, device) {}

ops::AttentionOptions PreparedPart::options(const ops::AttentionOptions& whole) const {
  ops::AttentionOptions options = whole;
  options.causal = mask != Mask::kAll;
  if (mask != Mask::kCausal) options.window = 0;
  return options;
}

std::vector<PreparedPart> prepared(const std::vector<AttentionPart>& parts, at::Device device) {
  std::vector<PreparedPart> all;
  for (const AttentionPart& part : parts) all.emplace_back(part, device);
  return all;
}

Rows::Rows(const std::vector<TokenRange>& ranges, bool backwards, at::Device device) {
  bool together = !backwards;
  for (size_t i = 0; i < ranges.size(); ++i) {
    count_ += ranges[i].end - ranges[i].begin;
    together = together && (i == 0 || ranges[i].begin == ranges[i - 1].end);
  }
  if (!ranges.empty()) first_ = ranges.front().begin;
  if (together) return;
  at::Tensor index = at::empty({count_}, at::kLong);
  auto* out = index.mutable_data_ptr<int64_t>();
  for (const auto& [begin, end] : ranges)
    for (int64_t i = 0; i < end - begin; ++i) *out++ = backwards ? end - 1 - i : begin + i;
  index_ = ops::to_device(index, device);
}

at::Tensor Rows::of(const at::Tensor& tensor, int64_t dim) const {
  return index_.defined() ? tensor.index_select(dim, index_) : tensor.narrow(dim, first_, count_);
}

void Rows::write(const at::Tensor& tensor, const at::Tensor& values, int64_t dim) const {
  if (index_.defined())
    at::Tensor(tensor).index_copy_(dim, index_, values);
  else
    tensor.narrow(dim, first_, count_).copy_(values);
}

void Rows::add(const at::Tensor& tensor, const at::Tensor& values, int64_t dim) const {
  if (index_.defined())
    at::Tensor(tensor).index_add_(dim, index_, values.to(tensor.scalar_type()));
  else
    tensor.narrow(dim, first_, count_).add_(values);
}

PartialAttention::PartialAttention(at::Tensor q, int64_t value_size, ops::AttentionOptions options)
    : q_(std::move(q)), value_size_(value_size), options_(std::move(options)) {
  const int64_t t = q_.size(0), n = q_.size(1);
  const auto sums = q_.options().dtype(sum_type(q_));
  out_ = at::zeros({t, n, value_size}, sums);
  log_sum_exp_ = at::full({n, t}, -std::numeric_limits<double>::infinity(), sums);
}

// Rows of queries that a part does not contain are left alone. exp(-∞ - L') is 0, so that the first part needs no case.
void PartialAttention::add(const std::vector<PreparedPart>& parts, const at::Tensor& keys_values) {
  const int64_t d = q_.size(2);
  for (const PreparedPart& call : parts) {
    const at::Tensor kv = call.keys.of(keys_values);
    const ops::AttentionResult one =
        ops::attention_forward(call.queries.of(q_), kv.narrow(2, 0, d), kv.narrow(2, d, value_size_), call.query_layout,
                               call.key_layout, call.options(options_));
    const at::Tensor before = call.queries.of(log_sum_exp_, 1);
    const at::Tensor after = at::logaddexp(before, one.log_sum_exp);
    at::Tensor out = call.queries.of(out_) * by_row((before - after).exp_());
    out.addcmul_(one.out.to(out.scalar_type()), by_row((one.log_sum_exp - after).exp_()));
    call.queries.write(out_, out);
    call.queries.write(log_sum_exp_, after, 1);
  }
}

ops::AttentionResult PartialAttention::result() const { return {out_.to(q_.scalar_type()), log_sum_exp_}; }

PartialAttentionBackward::PartialAttentionBackward(at::Tensor grad_out, at::Tensor q, ops::AttentionResult result,
                                                   ops::AttentionOptions options)
    : grad_out_(std::move(grad_out)),
      q_(std::move(q)),
      result_(std::move(result)),
      options_(std::move(options)),
      grad_q_(at::zeros(q_.sizes(), q_.options().dtype(sum_type(q_)))) {}

at::Tensor PartialAttentionBackward::add(const std::vector<PreparedPart>& parts, const at::Tensor& keys_values) {
  const int64_t d = q_.size(2), e = keys_values.size(2) - d;
  at::Tensor grad = at::zeros(keys_values.sizes(), grad_q_.options());
  for (const PreparedPart& call : parts) {
    const at::Tensor kv = call.keys.of(keys_values);
    const ops::AttentionResult seen{call.queries.of(result_.out), call.queries.of(result_.log_sum_exp, 1).contiguous()};
    const ops::AttentionGrads grads =
        ops::attention_backward(call.queries.of(grad_out_), call.queries.of(q_), kv.narrow(2, 0, d), kv.narrow(2, d, e),
                                seen, call.query_layout, call.key_layout, call.options(options_));
    call.queries.add(grad_q_, grads.q);
    call.keys.add(grad.narrow(2, 0, d), grads.k);
    call.keys.add(grad.narrow(2, d, e), grads.v);
  }
  return grad;
}

}  // namespace megalith::nn
