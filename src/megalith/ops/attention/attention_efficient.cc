// Memory-efficient attention through libtorch's CUTLASS kernels, which are dispatched at run time: this file compiles
// without CUDA. They compute fp32 products from three TF32 ones, as exact as fp32, and take packed sequences
// as [1, t, n, d] with cumulative lengths. Their causal mask is aligned bottom-right and their window counts the query
// itself, both as ours. Two things are left to other kernels, because gradients came out wrong on an H200 (libtorch
// 2.11): dropout, and windows over more keys than queries.
//
// The kernels know no grouped heads: k and v are repeated for the query heads of a group, and the gradients of the
// copies are summed.
#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <limits>

#include "megalith/ops/attention/attention_internal.h"

namespace megalith::ops {

namespace {

// Kinds of masks of the kernels.
enum EfficientMask : int64_t { kNoMask = 0, kCausalFromBottomRight = 2 };

constexpr int64_t kQueryUnit = 32;  // rows of log-sum-exp are padded to multiples of this

int64_t padded_length(const SequenceLayout& queries) {
  return (queries.longest() + kQueryUnit - 1) / kQueryUnit * kQueryUnit;
}

// [t, n, d] -> [1, t, n, d], with rows that start at multiples of 16 bytes.
at::Tensor as_batch(const at::Tensor& x) {
  const auto unit = static_cast<int64_t>(16 / x.element_size());
  const bool aligned =
      x.stride(0) % unit == 0 && x.stride(1) % unit == 0 && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
  return (aligned ? x : x.clone(at::MemoryFormat::Contiguous)).unsqueeze(0);
}

// [u, g, d] -> [u, n, d]: a copy of each key/value head for every query head of its group.
at::Tensor repeated(const at::Tensor& x, int64_t group) {
  return group == 1 ? x : x.unsqueeze(2).expand({-1, -1, group, -1}).reshape({x.size(0), -1, x.size(2)});
}

// The reverse for gradients: [u, n, d] -> [u, g, d].
at::Tensor summed(const at::Tensor& x, int64_t group) { return group == 1 ? x : x.unflatten(1, {-1, group}).sum(2); }

int64_t mask_of(const AttentionOptions& options) { return options.causal ? kCausalFromBottomRight : kNoMask; }

std::optional<int64_t> window_of(const AttentionOptions& options) {
  if (options.window == 0) return std::nullopt;
  return options.window;
}

// Keys that several blocks share are added up in any order. (libtorch would only warn: its switch is set to warn_only.)
std::optional<int64_t> splits_of_keys() {
  if (at::globalContext().deterministicAlgorithms()) return 1;
  return std::nullopt;
}

// Returns, for each token, its place in rows of `length` per sequence, int64 [t].
at::Tensor places(const SequenceLayout& queries, int64_t length, at::Device device) {
  const at::Tensor starts = queries.cumulative_tensor(device).to(at::kLong);
  const at::Tensor tokens = at::arange(queries.tokens(), starts.options());
  const at::Tensor sequence = at::searchsorted(starts.slice(0, 1), tokens, /*out_int32=*/false, /*right=*/true);
  return tokens - starts.index_select(0, sequence) + sequence * length;
}

}  // namespace

at::Tensor unpad_log_sum_exp(const at::Tensor& padded, const SequenceLayout& queries) {
  const int64_t n = padded.size(1), length = padded.size(2);
  return padded.transpose(0, 1).reshape({n, -1}).index_select(1, places(queries, length, padded.device()));
}

at::Tensor pad_log_sum_exp(const at::Tensor& log_sum_exp, const SequenceLayout& queries) {
  const int64_t n = log_sum_exp.size(0), b = queries.sequences(), length = padded_length(queries);
  // The probability of padding is exp(score - inf) = 0.
  at::Tensor padded = at::full({n, b * length}, std::numeric_limits<float>::infinity(), log_sum_exp.options());
  padded.index_copy_(1, places(queries, length, log_sum_exp.device()), log_sum_exp);
  return padded.view({n, b, length}).transpose(0, 1).contiguous();
}

bool pads_too_much(const SequenceLayout& queries, int64_t heads) {
  const int64_t padded = queries.sequences() * padded_length(queries);
  return queries.sequences() > 1 && padded > 8 * queries.tokens() && padded * heads > (int64_t{1} << 22);
}

std::pair<AttentionCall, AttentionCall> halves(const AttentionCall& call) {
  const auto cut = static_cast<size_t>(call.queries.sequences() / 2);
  const auto part = [&](bool second) {
    const auto range = [&](const SequenceLayout& layout, const at::Tensor& x) {
      const int64_t begin = second ? layout.cumulative()[cut] : 0;
      const int64_t end = second ? layout.tokens() : layout.cumulative()[cut];
      return x.narrow(0, begin, end - begin);
    };
    const auto lengths = [&](const SequenceLayout& layout) {
      const auto& ends = layout.cumulative();
      std::vector<int64_t> own;
      for (size_t i = second ? cut : 0; i < (second ? ends.size() - 1 : cut); ++i) own.push_back(ends[i + 1] - ends[i]);
      return SequenceLayout::packed(own);
    };
    return AttentionCall{range(call.queries, call.q), range(call.keys, call.k), range(call.keys, call.v),
                         lengths(call.queries),       lengths(call.keys),       call.options};
  };
  return {part(false), part(true)};
}

KernelResult attention_efficient_forward(const AttentionCall& call) {
  const AttentionOptions& options = call.options;
  if (pads_too_much(call.queries, call.q.size(1))) {
    const auto [first, second] = halves(call);
    const KernelResult a = attention_efficient_forward(first), b = attention_efficient_forward(second);
    return {.out = at::cat({a.out, b.out}), .log_sum_exp = at::cat({a.log_sum_exp, b.log_sum_exp}, 1)};
  }
  const auto device = call.q.device();
  const auto result = at::_efficient_attention_forward(
      as_batch(call.q), as_batch(repeated(call.k, call.group())), as_batch(repeated(call.v, call.group())),
      /*bias=*/std::nullopt, call.queries.cumulative_tensor(device), call.keys.cumulative_tensor(device),
      call.queries.longest(), call.keys.longest(), /*dropout_p=*/0, mask_of(options), /*compute_log_sumexp=*/true,
      options.scale, /*seqlen_k=*/std::nullopt, window_of(options));
  return {.out = std::get<0>(result).squeeze(0), .log_sum_exp = unpad_log_sum_exp(std::get<1>(result), call.queries)};
}

AttentionGrads attention_efficient_backward(const AttentionCall& call, const at::Tensor& grad_out,
                                            const KernelResult& result) {
  const AttentionOptions& options = call.options;
  if (pads_too_much(call.queries, call.q.size(1))) {
    const auto [first, second] = halves(call);
    const int64_t cut = first.q.size(0), rest = second.q.size(0);
    const auto part = [&](const AttentionCall& half, int64_t begin, int64_t count) {
      return attention_efficient_backward(
          half, grad_out.narrow(0, begin, count),
          {result.out.narrow(0, begin, count), result.log_sum_exp.narrow(1, begin, count), {}});
    };
    const AttentionGrads a = part(first, 0, cut), b = part(second, cut, rest);
    return {at::cat({a.q, b.q}), at::cat({a.k, b.k}), at::cat({a.v, b.v})};
  }
  const auto device = call.q.device();
  const at::Tensor unused = at::zeros({}, at::kLong);  // seed and offset of dropout
  const auto grads = at::_efficient_attention_backward(
      grad_out.contiguous().unsqueeze(0), as_batch(call.q), as_batch(repeated(call.k, call.group())),
      as_batch(repeated(call.v, call.group())), /*bias=*/std::nullopt, result.out.contiguous().unsqueeze(0),
      call.queries.cumulative_tensor(device), call.keys.cumulative_tensor(device), call.queries.longest(),
      call.keys.longest(), pad_log_sum_exp(result.log_sum_exp, call.queries), /*dropout_p=*/0, unused, unused,
      mask_of(options), /*bias_requires_grad=*/false, options.scale, splits_of_keys(), window_of(options),
      /*shared_storage_dqdkdv=*/false);
  return {std::get<0>(grads).squeeze(0), summed(std::get<1>(grads).squeeze(0), call.group()),
          summed(std::get<2>(grads).squeeze(0), call.group())};
}

}  // namespace megalith::ops
