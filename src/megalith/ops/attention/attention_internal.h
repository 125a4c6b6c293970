// Shared by attention.cc and its kernels. A kernel is a pair of functions:
//
//   forward    call -> {out, log_sum_exp}
//   backward   call, dout, {out, log_sum_exp} -> {dq, dk, dv}     probabilities are exp(scores - log_sum_exp) again
//
// Legend as in attention.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "megalith/ops/attention/attention.h"

namespace megalith::ops {

// A checked call: shapes fit, channels are contiguous, `options.kernel` and `options.scale` are decided.
struct AttentionCall {
  at::Tensor q, k, v;            // [t, n, d], [u, g, d], [u, g, e]
  SequenceLayout queries, keys;  // as many sequences each
  AttentionOptions options;

  int64_t group() const { return q.size(1) / k.size(1); }  // query heads per key/value head
};

// The result of a kernel, which its backward needs.
struct KernelResult {
  at::Tensor out;                         // [t, n, e]
  at::Tensor log_sum_exp;                 // [n, t], fp32 (fp64 for fp64)
  std::vector<at::Tensor> dropout_state;  // with dropout: lets backward find the same mask
};

// Plain ATen operations; any device, any dtype, all options.
KernelResult attention_math_forward(const AttentionCall& call);
AttentionGrads attention_math_backward(const AttentionCall& call, const at::Tensor& grad_out,
                                       const KernelResult& result);

// CPU; fp32, bf16, fp16; no dropout.
KernelResult attention_flash_forward(const AttentionCall& call);
AttentionGrads attention_flash_backward(const AttentionCall& call, const at::Tensor& grad_out,
                                        const KernelResult& result);

// CUDA, options.kernel kFlash or kCudnn; bf16, fp16.
KernelResult attention_cuda_forward(const AttentionCall& call);
AttentionGrads attention_cuda_backward(const AttentionCall& call, const at::Tensor& grad_out,
                                       const KernelResult& result);

// cuDNN with any lengths and windows; bf16, fp16; no dropout. They return std::nullopt if the call has no plans, or if
// cuDNN has no kernel for it. Only in builds with cuDNN's front end (MEGALITH_CUDNN).
std::optional<KernelResult> attention_cudnn_forward(const AttentionCall& call);
std::optional<AttentionGrads> attention_cudnn_backward(const AttentionCall& call, const at::Tensor& grad_out,
                                                       const KernelResult& result);
std::unique_ptr<AttentionPlans> make_cudnn_plans();

// CUDA; fp32, bf16, fp16; all options.
KernelResult attention_efficient_forward(const AttentionCall& call);
AttentionGrads attention_efficient_backward(const AttentionCall& call, const at::Tensor& grad_out,
                                            const KernelResult& result);

// How the efficient kernels keep log-sum-exp: one row per sequence and query head, padded to multiples of 32 queries of
// the longest sequence. [b, n, padded] <-> [n, t].
at::Tensor unpad_log_sum_exp(const at::Tensor& padded, const SequenceLayout& queries);
at::Tensor pad_log_sum_exp(const at::Tensor& log_sum_exp, const SequenceLayout& queries);
// Returns whether those rows would hold far more padding than queries, so that the call should be cut between two
// sequences.
bool pads_too_much(const SequenceLayout& queries, int64_t heads);
// Returns the two halves of a call of several sequences.
std::pair<AttentionCall, AttentionCall> halves(const AttentionCall& call);

}  // namespace megalith::ops
