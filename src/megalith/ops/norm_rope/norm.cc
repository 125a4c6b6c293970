// Autograd around the norm kernels: norm, norm_fork and add_norm are one autograd function with a different treatment
// of the residual. It saves the kernel's input (x, or x + delta) and the statistics of each row; backward computes x̂
// again, which costs nothing beside reading x. Where no gradient is needed, the kernel runs alone and stores no
// statistics. Weight gradients go straight to a GradTarget where there is one, so that autograd never holds them.
#include "megalith/ops/norm_rope/norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/autograd_state.h"
#include "megalith/ops/kernel/tensor_internal.h"
#include "megalith/ops/norm_rope/composite_internal.h"
#include "megalith/ops/norm_rope/norm_internal.h"

namespace megalith::ops {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The second output of the function, beside norm(x).
enum class Residual {
  kNone,  // no second output
  kFork,  // x itself
  kAdd    // x + delta
};

// Shapes are errors of the calling layer, not of the user's settings: InternalError.
void check_arguments(const Tensor& x, const NormWeights& weights) {
  check(x.dim() >= 1 && x.is_floating_point(), "norm takes rows of floating-point numbers; it got {} of {}",
        shape_text(x), c10::toString(x.scalar_type()));
  const int64_t h = x.size(-1);
  check(weights.weight.defined() && weights.weight.dim() == 1 && weights.weight.size(0) == h,
        "the weight of a norm over rows of {} must have {} elements; it has {}", h, h,
        weights.weight.defined() ? weights.weight.numel() : 0);
  if (!weights.bias.defined()) return;
  check(weights.kind == NormKind::kLayer, "an RMSNorm has no bias; it got one of {} elements", weights.bias.numel());
  check(weights.bias.dim() == 1 && weights.bias.size(0) == h,
        "the bias of a norm over rows of {} must have {} elements; it has {}", h, h, weights.bias.numel());
}

NormRows rows_of(const Tensor& x, const NormWeights& weights) {
  const int64_t h = x.size(-1);
  return {.dtype = x.scalar_type(),
          .rows = h == 0 ? 0 : x.numel() / h,
          .width = h,
          .centered = weights.kind == NormKind::kLayer,
          // HF's norms with a zero-centered weight (Gemma, Qwen3-Next) stay in fp32 until the end.
          .rounded = weights.kind == NormKind::kRms && !weights.zero_centered,
          .narrow = weights.out == x.scalar_type() ? at::ScalarType::Undefined
                                                   : weights.out.value_or(at::ScalarType::Undefined)};
}

// The type of norm(x).
at::ScalarType out_dtype(const Tensor& x, const NormWeights& weights) { return weights.out.value_or(x.scalar_type()); }

// Whether a kernel of ours takes x and writes the type that is asked for.
bool has_norm_kernel(const Tensor& x, const NormWeights& weights) {
  const at::ScalarType out = out_dtype(x, weights);
  const bool narrows = x.scalar_type() == at::kFloat && (out == at::kBFloat16 || out == at::kHalf);
  return has_kernel(x) && (out == x.scalar_type() || narrows);
}

// Weight and bias as the kernels read them. CUDA kernels read them as they are, in fp32 or in the dtype of y, and add
// the shift themselves: no launch just for h numbers. The CPU kernels get them in acc, already shifted.
struct KernelWeights {
  Tensor weight, bias;  // bias may be undefined
};
KernelWeights kernel_weights(const Tensor& x, const Tensor& weight, const Tensor& bias, bool zero_centered,
                             NormRows& shape) {
  const at::ScalarType acc = acc_dtype(x);
  const auto as_acc = [&](const Tensor& t, bool shifted) {
    return t.defined() ? norm_multiplier(t, shifted, acc) : Tensor();
  };
  if (!x.is_cuda()) return {as_acc(weight, zero_centered), as_acc(bias, false)};
  shape.weight_shift = zero_centered ? 1 : 0;
  shape.raw_weights = weight.scalar_type() == shape.branch() && weight.is_contiguous() &&
                      (!bias.defined() || (bias.scalar_type() == shape.branch() && bias.is_contiguous()));
  if (shape.raw_weights) return {weight, bias};
  return {as_acc(weight, false), as_acc(bias, false)};
}

// Outputs of the forward kernel; the first and the last two are what backward saves.
struct KernelResult {
  Tensor x;           // input of the norm: x, or x + delta; contiguous
  Tensor y;           // same shape as x
  Tensor mean, rstd;  // acc [t]; undefined without a backward pass, mean also for RMSNorm
};

// Runs the kernel of the device of x. Tensors that are not contiguous are copied first.
KernelResult run_forward(const Tensor& x, const Tensor& delta, const NormWeights& weights, bool with_statistics) {
  NormRows shape = rows_of(x, weights);
  const at::ScalarType acc = acc_dtype(x);
  const Tensor in = x.contiguous();
  const Tensor add = delta.defined() ? delta.contiguous() : Tensor();
  const auto [weight, bias] = kernel_weights(x, weights.weight, weights.bias, weights.zero_centered, shape);
  KernelResult result{.x = add.defined() ? at::empty_like(in) : in,
                      .y = at::empty(in.sizes(), in.options().dtype(shape.branch()))};
  NormForward args{.x = in.const_data_ptr(), .weight = weight.const_data_ptr(), .epsilon = weights.epsilon};
  args.y = result.y.mutable_data_ptr();
  if (bias.defined()) args.bias = bias.const_data_ptr();
  if (add.defined()) {
    args.delta = add.const_data_ptr();
    args.sum = result.x.mutable_data_ptr();
  }
  if (with_statistics) {
    result.rstd = at::empty({shape.rows}, in.options().dtype(acc));
    args.rstd = result.rstd.mutable_data_ptr();
    if (shape.centered) {
      result.mean = at::empty({shape.rows}, in.options().dtype(acc));
      args.mean = result.mean.mutable_data_ptr();
    }
  }
  if constexpr (kCudaKernels) {
    if (x.is_cuda()) {
      norm_forward_cuda(shape, args, stream_of(x));
      return result;
    }
  }
  norm_forward_cpu(shape, args);
  return result;
}

void run_backward(const Tensor& x, const NormRows& shape, const NormBackward& args) {
  if constexpr (kCudaKernels) {
    if (x.is_cuda()) {
      const Tensor workspace = floats_for(x, norm_backward_workspace_cuda(shape));
      return norm_backward_cuda(shape, args, workspace.mutable_data_ptr<float>(), stream_of(x));
    }
  }
  norm_backward_cpu(shape, args);
}

// Inputs that receive a gradient: x, weight, bias, delta. Outputs: y, or {x or x + delta, y}.
class NormFunction : public torch::autograd::Function<NormFunction> {
 public:
  struct State {
    Residual residual;
    NormRows shape;
    bool zero_centered;
    bool has_bias;
    GradTarget weight_target, bias_target;
  };

  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                               const std::optional<Tensor>& bias, const std::optional<Tensor>& delta, Residual residual,
                               const NormWeights& weights) {
    KernelResult result = run_forward(x, delta.value_or(Tensor()), weights, /*with_statistics=*/true);
    save_state(ctx, State{residual, rows_of(x, weights), weights.zero_centered, bias.has_value(), weights.weight_target,
                          weights.bias_target});
    // An output without a gradient stays undefined, so that backward can skip its part instead of adding zeros.
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({result.x, weight, result.mean, result.rstd});
    if (residual == Residual::kNone) return {result.y};
    // An input that is returned becomes a view of itself with this function as its history: no memory is copied.
    return {residual == Residual::kFork ? x : result.x, result.y};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto& state = saved_state<State>(ctx);
    const Tensor& grad_y = grads.back();
    const Tensor grad_residual = grads.size() == 2 ? grads.front() : Tensor();
    variable_list result(6);
    // Without a gradient of norm(x), that of the residual passes through. x and delta have the same gradient, each in
    // its dtype.
    if (grad_y.defined())
      compute(ctx, state, grad_y, grad_residual, result);
    else
      result[0] = grad_residual;
    if (state.residual == Residual::kAdd && result[0].defined() && !result[3].defined())
      result[3] = result[0].to(state.shape.branch());
    return result;
  }

 private:
  // Fills result[0 … 2] with the gradients of x, weight and bias; those that went to a target stay undefined. Fills
  // result[3], that of delta, if it has a dtype of its own.
  static void compute(AutogradContext* ctx, const State& state, const Tensor& grad_y, const Tensor& grad_residual,
                      variable_list& result) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &rstd = saved[3];
    NormRows shape = state.shape;
    const Tensor factor = kernel_weights(x, weight, {}, state.zero_centered, shape).weight;
    const Tensor dy = grad_y.contiguous();
    const Tensor residual = grad_residual.defined() ? grad_residual.contiguous() : Tensor();
    const bool with_bias = state.has_bias && ctx->needs_input_grad(2);
    // "there": the gradient goes to its target and not to autograd.
    const bool weight_there = ctx->needs_input_grad(1) && state.weight_target.wanted(x);
    const bool bias_there = with_bias && state.bias_target.wanted(x);
    Tensor grad_x = at::empty_like(x);
    // The CPU kernel writes weight gradients in acc, the CUDA kernel in any of its types.
    const bool as_weight = x.is_cuda() && weight.scalar_type() != at::kDouble;
    const at::TensorOptions options = x.options().dtype(as_weight ? weight.scalar_type() : acc_dtype(x));
    const Tensor grad_weight = weight_there ? state.weight_target.sum : at::empty({state.shape.width}, options);
    Tensor grad_bias;
    if (with_bias) grad_bias = bias_there ? state.bias_target.sum : at::empty({state.shape.width}, options);
    NormBackward args{.x = x.const_data_ptr(), .grad_y = dy.const_data_ptr(), .weight = factor.const_data_ptr()};
    args.rstd = rstd.const_data_ptr();
    if (residual.defined()) args.grad_residual = residual.const_data_ptr();
    if (mean.defined()) args.mean = mean.const_data_ptr();
    args.grad_x = grad_x.mutable_data_ptr();
    if (state.residual == Residual::kAdd && shape.branch() != shape.dtype) {
      result[3] = at::empty(x.sizes(), x.options().dtype(shape.branch()));
      args.grad_delta = result[3].mutable_data_ptr();
    }
    args.grad_weight = grad_weight.mutable_data_ptr();
    args.grad_weight_dtype = grad_weight.scalar_type();
    if (with_bias) {
      args.grad_bias = grad_bias.mutable_data_ptr();
      args.grad_bias_dtype = grad_bias.scalar_type();
    }
    args.add_weight = weight_there && state.weight_target.take_add();
    args.add_bias = bias_there && state.bias_target.take_add();
    run_backward(x, shape, args);
    result[0] = grad_x;
    if (ctx->needs_input_grad(1) && !weight_there) result[1] = grad_weight.to(weight.scalar_type());
    if (with_bias && !bias_there) result[2] = grad_bias.to(weight.scalar_type());
  }
};

// norm_fork (delta undefined) and add_norm.
std::pair<Tensor, Tensor> with_residual(const Tensor& x, const Tensor& delta, const NormWeights& weights) {
  const Residual residual = delta.defined() ? Residual::kAdd : Residual::kFork;
  if (!needs_gradient({x, delta, weights.weight, weights.bias})) {
    KernelResult result = run_forward(x, delta, weights, /*with_statistics=*/false);
    return {delta.defined() ? result.x : x, result.y};
  }
  variable_list outputs =
      NormFunction::apply(x, weights.weight, if_defined(weights.bias), if_defined(delta), residual, weights);
  return {outputs[0], outputs[1]};
}

}  // namespace

std::string shape_text(const Tensor& t) { return fmt::format("[{}]", fmt::join(t.sizes(), ", ")); }

Tensor norm_multiplier(const Tensor& weight, bool zero_centered, at::ScalarType acc) {
  const Tensor w = weight.to(acc).contiguous();
  return zero_centered ? w + 1 : w;
}

// The kernels in ATen's operations: the same roundings, a dozen passes over memory.
Tensor norm_composite(const Tensor& x, const NormWeights& weights) {
  const at::ScalarType acc = acc_dtype(x), out = out_dtype(x, weights);
  Tensor in = x.to(acc);
  const Tensor weight = weights.zero_centered ? weights.weight.to(acc) + 1 : weights.weight.to(acc);
  if (weights.kind == NormKind::kLayer) {
    const auto bias = weights.bias.defined() ? std::optional(weights.bias.to(acc)) : std::nullopt;
    return at::layer_norm(in, {x.size(-1)}, weight, bias, weights.epsilon).to(out);
  }
  in = in * at::rsqrt(in.square().mean(-1, /*keepdim=*/true) + weights.epsilon);
  if (!weights.zero_centered) in = in.to(x.scalar_type());
  return (in * weight).to(out);
}

Tensor norm(const Tensor& x, const NormWeights& weights) {
  check_arguments(x, weights);
  if (!has_norm_kernel(x, weights)) return norm_composite(x, weights);
  if (!needs_gradient({x, weights.weight, weights.bias}))
    return run_forward(x, {}, weights, /*with_statistics=*/false).y;
  return NormFunction::apply(x, weights.weight, if_defined(weights.bias), std::nullopt, Residual::kNone, weights)[0];
}

std::pair<Tensor, Tensor> norm_fork(const Tensor& x, const NormWeights& weights) {
  check_arguments(x, weights);
  if (!has_norm_kernel(x, weights)) return {x, norm_composite(x, weights)};
  return with_residual(x, {}, weights);
}

std::pair<Tensor, Tensor> add_norm(const Tensor& x, const Tensor& delta, const NormWeights& weights) {
  check(delta.sizes() == x.sizes(), "add_norm adds tensors of one shape; it got {} and {}", shape_text(x),
        shape_text(delta));
  // The kernel reads delta in the type in which it writes the norm.
  if (!has_norm_kernel(x, weights) || delta.scalar_type() != out_dtype(x, weights))
    return norm_fork(x + delta, weights);
  check_arguments(x, weights);
  return with_residual(x, delta, weights);
}

}  // namespace megalith::ops
