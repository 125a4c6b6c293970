// Checks, choice of the kernel and autograd of attention. Every kernel has one interface, forward -> {out, log_sum_exp}
// and backward from those, so that one autograd function serves all, and ring attention can call the passes itself. It
// saves q, k, v, out and one float per query and head: probabilities are computed again in backward.
#include "megalith/ops/attention/attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "megalith/base/error.h"
#include "megalith/ops/attention/attention_internal.h"
#include "megalith/ops/kernel/autograd_state.h"

namespace megalith::ops {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// For messages.
const char* name_of(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::kAuto:
      return "auto";
    case AttentionKernel::kMath:
      return "math";
    case AttentionKernel::kFlash:
      return "flash";
    case AttentionKernel::kCudnn:
      return "cudnn";
    case AttentionKernel::kEfficient:
      return "efficient";
  }
  return "?";
}

AttentionTraits traits_of(const at::Tensor& q, const at::Tensor& v, const AttentionOptions& options) {
  return {q.device().type(), q.scalar_type(), q.size(2), v.size(2), options.dropout > 0, options.window > 0};
}

// Returns the reason why a kernel does not support a call, for a message; empty if it does.
std::string obstacle(AttentionKernel kernel, const AttentionTraits& x) {
  const int64_t d = x.head_size, e = x.value_size;
  const bool half = x.dtype == at::kBFloat16 || x.dtype == at::kHalf;
  if (kernel == AttentionKernel::kMath) return "";
  if (x.device == at::kCPU) {
    if (kernel != AttentionKernel::kFlash) return "it needs CUDA tensors";
    if (x.dropout) return "on the CPU it does not support dropout";
    if (!half && x.dtype != at::kFloat) return "it takes fp32, bf16 and fp16";
    return "";
  }
  if (kernel == AttentionKernel::kEfficient) {
    if (!half && x.dtype != at::kFloat) return "it takes fp32, bf16 and fp16";
    if (x.dropout) return "its gradients are wrong with dropout";
    const int64_t unit = half ? 8 : 4;  // 16 bytes, which its copies move at a time
    if (d % unit == 0 && e % unit == 0) return "";
    return fmt::format("it takes head sizes that are multiples of {}; they are {} and {}", unit, d, e);
  }
  if (!half) return "on CUDA it takes bf16 and fp16";
  if (d % 8 != 0 || e % 8 != 0 || d > 256 || e > d)
    return fmt::format(
        "it takes head sizes that are multiples of 8 up to 256, with values no larger than keys; they are {} and {}", d,
        e);
  if (kernel == AttentionKernel::kCudnn && x.dropout) return "it does not support dropout";
  return "";
}

// Errors of settings are ConfigErrors; shapes that do not fit are errors of the calling code.
void check_options(const AttentionOptions& o) {
  check<ConfigError>(o.scale >= 0 && std::isfinite(o.scale),
                     "attention scale is {}; use a positive number, or 0 for 1/sqrt(d)", o.scale);
  check<ConfigError>(o.window >= 0, "attention window is {}; use 0 (none) or a positive number of tokens", o.window);
  check<ConfigError>(o.window == 0 || o.causal, "an attention window ({}) needs causal attention", o.window);
  check<ConfigError>(o.dropout >= 0 && o.dropout < 1, "attention_dropout is {}; it must be in [0, 1)", o.dropout);
  check(o.dropout == 0 || o.generator.defined(), "attention with dropout needs a generator");
}

// Legend as in the header: q [t, n, d], k [u, g, d], v [u, g, e].
void check_shapes(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const SequenceLayout& queries,
                  const SequenceLayout& keys, bool causal) {
  check(q.dim() == 3 && k.dim() == 3 && v.dim() == 3, "attention takes [tokens, heads, size] tensors; got {}, {}, {}",
        q.dim(), k.dim(), v.dim());
  check(q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type() && q.device() == k.device() &&
            q.device() == v.device(),
        "attention takes q, k, v of one dtype on one device");
  check(q.size(0) == queries.tokens() && k.size(0) == keys.tokens() && v.size(0) == keys.tokens(),
        "attention got {} queries, {} keys and {} values for layouts of {} queries and {} keys", q.size(0), k.size(0),
        v.size(0), queries.tokens(), keys.tokens());
  check(k.size(1) == v.size(1) && k.size(1) > 0 && q.size(1) % k.size(1) == 0,
        "attention got {} query, {} key and {} value heads; there must be as many key heads as value heads, and their "
        "number must divide that of the query heads",
        q.size(1), k.size(1), v.size(1));
  check(q.size(2) == k.size(2), "query heads have {} channels, key heads {}", q.size(2), k.size(2));
  check(queries.sequences() == keys.sequences(), "attention got {} query sequences and {} key sequences",
        queries.sequences(), keys.sequences());
  if (!causal) return;
  const auto &a = queries.cumulative(), &b = keys.cumulative();
  for (size_t s = 0; s + 1 < a.size(); ++s)
    check(a[s + 1] - a[s] <= b[s + 1] - b[s],
          "sequence {} has {} queries and {} keys; causal attention needs a key for each query", s, a[s + 1] - a[s],
          b[s + 1] - b[s]);
}

// Kernels take any distance between tokens and heads, but neighbors in a head must be neighbors in memory.
at::Tensor with_contiguous_channels(const at::Tensor& x) { return x.stride(2) == 1 ? x : x.contiguous(); }

// libtorch's memory-efficient backward ignores that a window of fewer queries than keys is aligned bottom-right.
bool misplaces_window(const SequenceLayout& queries, const SequenceLayout& keys, const AttentionOptions& options) {
  return options.kernel == AttentionKernel::kEfficient && options.window > 0 &&
         queries.cumulative() != keys.cumulative();
}

// Checks everything and resolves kAuto and the default scale, so that kernels need not.
AttentionCall make_call(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const SequenceLayout& queries,
                        const SequenceLayout& keys, AttentionOptions options) {
  check_options(options);
  check_shapes(q, k, v, queries, keys, options.causal);
  if (options.kernel == AttentionKernel::kAuto) {
    options.kernel = choose_attention_kernel(q, v, options);
    if (misplaces_window(queries, keys, options)) options.kernel = AttentionKernel::kMath;
  }
  std::string why = obstacle(options.kernel, traits_of(q, v, options));
  if (misplaces_window(queries, keys, options)) why = "it needs as many queries as keys where there is a window";
  check<ConfigError>(why.empty(), "attention kernel {} cannot be used: {}. Use auto.", name_of(options.kernel), why);
  if (options.scale == 0) options.scale = 1 / std::sqrt(static_cast<double>(q.size(2)));
  return {with_contiguous_channels(q), with_contiguous_channels(k), with_contiguous_channels(v), queries, keys,
          std::move(options)};
}

// kCudnn and kFlash on CUDA share one entry, which sends to flash-2 what cuDNN does not take.
KernelResult forward(const AttentionCall& call) {
  if (call.options.kernel == AttentionKernel::kMath) return attention_math_forward(call);
  if (call.options.kernel == AttentionKernel::kEfficient) return attention_efficient_forward(call);
  return call.q.is_cpu() ? attention_flash_forward(call) : attention_cuda_forward(call);
}

AttentionGrads backward(const AttentionCall& call, const at::Tensor& grad_out, const KernelResult& result) {
  if (call.options.kernel == AttentionKernel::kMath) return attention_math_backward(call, grad_out, result);
  if (call.options.kernel == AttentionKernel::kEfficient) return attention_efficient_backward(call, grad_out, result);
  return call.q.is_cpu() ? attention_flash_backward(call, grad_out, result)
                         : attention_cuda_backward(call, grad_out, result);
}

// The state of backward beside the saved tensors.
struct AttentionState {
  SequenceLayout queries, keys;
  AttentionOptions options;
  std::vector<at::Tensor> dropout_state;
};

// The tensors are inputs for autograd only; forward reads them from `call`.
class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& /*q*/, const at::Tensor& /*k*/,
                            const at::Tensor& /*v*/, const AttentionCall* call) {
    KernelResult result = ops::forward(*call);
    ctx->save_for_backward({call->q, call->k, call->v, result.out, result.log_sum_exp});
    save_state(ctx, AttentionState{call->queries, call->keys, call->options, std::move(result.dropout_state)});
    return result.out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads_out) {
    if (!grads_out[0].defined()) return {{}, {}, {}, {}};  // nothing depends on the output
    const variable_list saved = ctx->get_saved_variables();
    const AttentionState& state = saved_state<AttentionState>(ctx);
    const AttentionCall call{saved[0], saved[1], saved[2], state.queries, state.keys, state.options};
    AttentionGrads grads = ops::backward(call, grads_out[0], {saved[3], saved[4], state.dropout_state});
    return {grads.q, grads.k, grads.v, {}};
  }
};

}  // namespace

// The fastest first.
AttentionKernel choose_attention_kernel(const AttentionTraits& traits) {
  for (const auto kernel : {AttentionKernel::kCudnn, AttentionKernel::kFlash, AttentionKernel::kEfficient})
    if (obstacle(kernel, traits).empty()) return kernel;
  return AttentionKernel::kMath;
}

AttentionKernel choose_attention_kernel(const at::Tensor& q, const at::Tensor& v, const AttentionOptions& options) {
  return choose_attention_kernel(traits_of(q, v, options));
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const SequenceLayout& queries,
                     const SequenceLayout& keys, const AttentionOptions& options) {
  const AttentionCall call = make_call(q, k, v, queries, keys, options);
  // Without a gradient to compute, nothing is saved: the function's node would keep q, k and v alive.
  if (at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad()))
    return AttentionFunction::apply(call.q, call.k, call.v, &call);
  return forward(call).out;
}

AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const SequenceLayout& queries, const SequenceLayout& keys,
                                  const AttentionOptions& options) {
  check(options.dropout == 0, "attention_forward does not support dropout: its backward could not find the mask again");
  const at::NoGradGuard no_grad;
  KernelResult result = forward(make_call(q, k, v, queries, keys, options));
  return {std::move(result.out), std::move(result.log_sum_exp)};
}

AttentionGrads attention_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const AttentionResult& result, const SequenceLayout& queries,
                                  const SequenceLayout& keys, const AttentionOptions& options) {
  check(options.dropout == 0, "attention_backward does not support dropout: it does not know the mask");
  check(grad_out.sizes() == result.out.sizes() && grad_out.size(0) == q.size(0) && grad_out.size(1) == q.size(1) &&
            grad_out.size(2) == v.size(2),
        "attention_backward: grad_out and out must be [{}, {}, {}]", q.size(0), q.size(1), v.size(2));
  const at::NoGradGuard no_grad;
  return backward(make_call(q, k, v, queries, keys, options), grad_out, {result.out, result.log_sum_exp, {}});
}

}  // namespace megalith::ops
