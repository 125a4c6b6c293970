// cuDNN and flash-2 through libtorch's operations, which are dispatched at run time: this file compiles without CUDA.
//
// Dense batches go to cuDNN as [b, n, s, d] views. Packed sequences, windows, and queries that are only the last tokens
// of their keys go to cuDNN without libtorch (attention_cudnn.cc) where the call has plans, otherwise to flash-2 with
// cumulative lengths: libtorch's cuDNN entry for those takes the head size for the sequence length in backward, and
// aligns its causal mask top-left.
#include <ATen/ATen.h>
#include <ATen/Context.h>

#include "megalith/ops/attention/attention_internal.h"

namespace megalith::ops {

namespace {

constexpr bool kCudnn = MEGALITH_CUDNN != 0;  // built with cuDNN's front end

// Whether all sequences have one length, and queries are all tokens of their keys if the mask is causal.
bool dense(const AttentionCall& call) {
  return call.queries.uniform() && call.keys.uniform() &&
         (!call.options.causal || call.queries.longest() == call.keys.longest());
}

// cuDNN's gradients differ in their last bits from run to run; those of flash-2 do not where determinism is asked for.
bool may_use_cudnn(const AttentionCall& call) {
  return call.options.kernel == AttentionKernel::kCudnn && !at::globalContext().deterministicAlgorithms();
}

// Whether libtorch's entry for cuDNN takes the call.
bool takes_dense_cudnn(const AttentionCall& call) {
  return dense(call) && call.options.window == 0 && call.q.size(2) <= 128;
}

// [b·s, n, d] -> [b, n, s, d], a view.
at::Tensor to_batch(const at::Tensor& x, const SequenceLayout& layout) {
  return x.unflatten(0, {layout.sequences(), layout.longest()}).transpose(1, 2);
}

// [b, n, s, d] -> [b·s, n, d]
at::Tensor to_tokens(const at::Tensor& x) { return x.transpose(1, 2).flatten(0, 1); }

KernelResult cudnn_forward(const AttentionCall& call) {
  const int64_t b = call.queries.sequences(), s = call.queries.longest(), n = call.q.size(1);
  auto result = at::_scaled_dot_product_cudnn_attention(
      to_batch(call.q, call.queries), to_batch(call.k, call.keys), to_batch(call.v, call.keys),
      /*attn_bias=*/std::nullopt, /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, call.options.causal,
      /*return_debug_mask=*/false, call.options.scale);
  const at::Tensor stats = std::get<1>(result).reshape({b, n, s}).transpose(0, 1).reshape({n, b * s});
  return {.out = to_tokens(std::get<0>(result)), .log_sum_exp = stats};
}

AttentionGrads cudnn_backward(const AttentionCall& call, const at::Tensor& grad_out, const KernelResult& result) {
  const int64_t b = call.queries.sequences(), s = call.queries.longest(), n = call.q.size(1);
  const at::Tensor stats = result.log_sum_exp.reshape({n, b, s}).transpose(0, 1).contiguous().unsqueeze(-1);
  const at::Tensor no_seed = at::zeros({}, call.q.options().dtype(at::kLong));  // read only with dropout
  auto [q, k, v] = at::_scaled_dot_product_cudnn_attention_backward(
      to_batch(grad_out, call.queries), to_batch(call.q, call.queries), to_batch(call.k, call.keys),
      to_batch(call.v, call.keys), to_batch(result.out, call.queries), stats, no_seed, no_seed,
      /*attn_bias=*/at::Tensor(), /*cum_seq_q=*/at::Tensor(), /*cum_seq_k=*/at::Tensor(), s, call.keys.longest(),
      /*dropout_p=*/0.0, call.options.causal, call.options.scale);
  return {to_tokens(q), to_tokens(k), to_tokens(v)};
}

// Flash-2 wants value heads as large as the others: zeros appended to them change nothing.
at::Tensor widened(const at::Tensor& x, int64_t d) {
  return x.size(2) == d ? x : at::constant_pad_nd(x, {0, d - x.size(2)});
}

// A window of w tokens includes the query itself: w - 1 tokens to its left, none to its right.
std::optional<int64_t> window_left(const AttentionOptions& options) {
  if (options.window == 0) return std::nullopt;
  return options.window - 1;
}
std::optional<int64_t> window_right(const AttentionOptions& options) {
  if (options.window == 0) return std::nullopt;
  return 0;
}

KernelResult libtorch_flash_forward(const AttentionCall& call) {
  const int64_t d = call.q.size(2), e = call.v.size(2);
  const auto device = call.q.device();
  // Dropout draws from the default generator of the device, which is that of the caller: libtorch's kernels take no
  // other.
  auto [out, stats, rng_state, unused, debug] = at::_flash_attention_forward(
      call.q, call.k, widened(call.v, d), call.queries.cumulative_tensor(device), call.keys.cumulative_tensor(device),
      call.queries.longest(), call.keys.longest(), call.options.dropout, call.options.causal,
      /*return_debug_mask=*/false, call.options.scale, window_left(call.options), window_right(call.options));
  KernelResult result{.out = e == d ? out : out.narrow(2, 0, e).contiguous(), .log_sum_exp = stats};  // stats [n, t]
  if (call.options.dropout > 0) result.dropout_state = {rng_state, unused};
  return result;
}

// libtorch's flash-2 adds gradients of queries in a fixed order only where determinism is strict. Megalith's is not
// (an operation without a deterministic form warns instead of ending the run), so it is made strict for one call.
class StrictDeterminism {
 public:
  StrictDeterminism() : on_(at::globalContext().deterministicAlgorithms()) { set(/*warn_only=*/false); }
  ~StrictDeterminism() { set(before_); }
  StrictDeterminism(const StrictDeterminism&) = delete;
  StrictDeterminism& operator=(const StrictDeterminism&) = delete;

 private:
  void set(bool warn_only) const {
    if (on_) at::globalContext().setDeterministicAlgorithms(true, warn_only);
  }
  const bool on_;
  const bool before_ = at::globalContext().deterministicAlgorithmsWarnOnly();
};

AttentionGrads libtorch_flash_backward(const AttentionCall& call, const at::Tensor& grad_out,
                                       const KernelResult& result) {
  const int64_t d = call.q.size(2), e = call.v.size(2);
  const auto device = call.q.device();
  at::Tensor rng_state, unused;
  if (call.options.dropout > 0) {
    rng_state = result.dropout_state[0];
    unused = result.dropout_state[1];
  } else {
    rng_state = at::zeros({2}, call.q.options().dtype(at::kUInt64));
    unused = at::empty({0}, call.q.options());
  }
  const StrictDeterminism strict;
  auto [q, k, v] = at::_flash_attention_backward(
      widened(grad_out, d), call.q, call.k, widened(call.v, d), widened(result.out, d), result.log_sum_exp,
      call.queries.cumulative_tensor(device), call.keys.cumulative_tensor(device), call.queries.longest(),
      call.keys.longest(), call.options.dropout, call.options.causal, rng_state, unused, call.options.scale,
      window_left(call.options), window_right(call.options));
  return {q, k, e == d ? v : v.narrow(2, 0, e)};
}

}  // namespace

std::unique_ptr<AttentionPlans> make_attention_plans() {
  if constexpr (kCudnn) return make_cudnn_plans();
  return nullptr;
}

KernelResult attention_cuda_forward(const AttentionCall& call) {
  if (!may_use_cudnn(call)) return libtorch_flash_forward(call);
  if (takes_dense_cudnn(call)) return cudnn_forward(call);
  if constexpr (kCudnn) {
    if (std::optional<KernelResult> result = attention_cudnn_forward(call)) return *std::move(result);
  }
  return libtorch_flash_forward(call);
}

AttentionGrads attention_cuda_backward(const AttentionCall& call, const at::Tensor& grad_out,
                                       const KernelResult& result) {
  if (!may_use_cudnn(call)) return libtorch_flash_backward(call, grad_out, result);
  if (takes_dense_cudnn(call)) return cudnn_backward(call, grad_out, result);
  if constexpr (kCudnn) {
    if (std::optional<AttentionGrads> grads = attention_cudnn_backward(call, grad_out, result))
      return *std::move(grads);
  }
  return libtorch_flash_backward(call, grad_out, result);
}

}  // namespace megalith::ops
