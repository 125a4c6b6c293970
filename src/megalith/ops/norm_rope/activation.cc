// Autograd around the activation kernels. Both functions save their input alone (and the small bias or row weights):
// value and slope of the activation are cheap to compute again beside reading the input. What is not fused here is
// expressed by what is: row weights on the CPU are a product of their own after the activation.
#include "megalith/ops/norm_rope/activation.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/autograd_state.h"
#include "megalith/ops/kernel/tensor_internal.h"
#include "megalith/ops/norm_rope/activation_internal.h"
#include "megalith/ops/norm_rope/composite_internal.h"

namespace megalith::ops {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// `name` is that of the public function, for the message.
void check_input(const char* name, const Tensor& x) {
  check(x.dim() >= 1 && x.is_floating_point(), "{} takes rows of floating-point numbers; it got {} of {}", name,
        shape_text(x), c10::toString(x.scalar_type()));
}

// The rows of the output y; a tensor of any rank is seen as rows of its last dimension.
ActivationRows rows_of(const Tensor& y, Activation activation) {
  const int64_t f = y.size(-1);
  return {y.scalar_type(), f == 0 ? 0 : y.numel() / f, f, activation};
}

const float* floats_or_null(const Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; }

// Runs forward; `weights` may be defined on CUDA only. [.., 2f] -> [.., f]
Tensor gated_kernel(const Tensor& gate_up, Activation activation, const Tensor& weights) {
  const Tensor in = gate_up.contiguous();
  std::vector<int64_t> sizes = gate_up.sizes().vec();
  sizes.back() /= 2;
  Tensor y = at::empty(sizes, in.options());
  const ActivationRows rows = rows_of(y, activation);
  if constexpr (kCudaKernels) {
    if (in.is_cuda()) {
      gated_forward_cuda(rows, in.const_data_ptr(), floats_or_null(weights), y.mutable_data_ptr(), stream_of(in));
      return y;
    }
  }
  gated_forward_cpu(rows, in.const_data_ptr(), y.mutable_data_ptr());
  return y;
}

// Inputs that receive a gradient: gate_up and, on CUDA, the row weights. Backward returns one tensor laid out as
// gate_up, which is the output gradient of the fused projection as it stands.
class GatedFunction : public torch::autograd::Function<GatedFunction> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& gate_up, Activation activation,
                        const std::optional<Tensor>& row_weights) {
    const Tensor weights = row_weights ? row_weights->contiguous() : Tensor();
    ctx->save_for_backward({gate_up, weights});
    ctx->saved_data["activation"] = static_cast<int64_t>(activation);
    return gated_kernel(gate_up, activation, weights);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor in = saved[0].contiguous(), weights = saved[1];
    const Tensor grad_y = grads[0].contiguous();
    Tensor grad = at::empty_like(in), grad_weights = weights.defined() ? at::empty_like(weights) : Tensor();
    const ActivationRows rows = rows_of(grad_y, static_cast<Activation>(ctx->saved_data["activation"].toInt()));
    if constexpr (kCudaKernels) {
      if (in.is_cuda()) {
        gated_backward_cuda(rows, in.const_data_ptr(), floats_or_null(weights), grad_y.const_data_ptr(),
                            grad.mutable_data_ptr(),
                            grad_weights.defined() ? grad_weights.mutable_data_ptr<float>() : nullptr, stream_of(in));
        return {grad, {}, grad_weights};
      }
    }
    gated_backward_cpu(rows, in.const_data_ptr(), grad_y.const_data_ptr(), grad.mutable_data_ptr());
    return {grad, {}, {}};
  }
};

// The bias as the kernels read it: in acc, or on CUDA as it is, if it has the dtype of x (reads_raw).
bool reads_raw(const Tensor& bias, const Tensor& x) {
  return x.is_cuda() && bias.defined() && bias.scalar_type() == x.scalar_type() && bias.is_contiguous();
}
Tensor kernel_bias(const Tensor& bias, const Tensor& x) {
  if (!bias.defined() || reads_raw(bias, x)) return bias;
  return bias.to(acc_dtype(x)).contiguous();
}
const void* data_or_null(const Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }

// Runs forward; the bias may be undefined.
Tensor biased_kernel(const Tensor& x, const Tensor& bias, Activation activation) {
  const Tensor in = x.contiguous();
  const Tensor added = kernel_bias(bias, x);
  Tensor y = at::empty_like(in);
  ActivationRows rows = rows_of(y, activation);
  rows.raw_bias = reads_raw(bias, x);
  if constexpr (kCudaKernels) {
    if (in.is_cuda()) {
      bias_forward_cuda(rows, in.const_data_ptr(), data_or_null(added), y.mutable_data_ptr(), stream_of(in));
      return y;
    }
  }
  bias_forward_cpu(rows, in.const_data_ptr(), data_or_null(added), y.mutable_data_ptr());
  return y;
}

// Runs backward. An undefined grad_bias is not computed; `add_bias` (CUDA only) adds to its values.
void run_bias_backward(const ActivationRows& rows, const Tensor& x, const Tensor& bias, const Tensor& grad_y,
                       const Tensor& grad_x, const Tensor& grad_bias, bool add_bias) {
  void* bias_out = grad_bias.defined() ? grad_bias.mutable_data_ptr() : nullptr;
  if constexpr (kCudaKernels) {
    if (x.is_cuda()) {
      const Tensor workspace = bias_out == nullptr ? Tensor() : floats_for(x, bias_backward_workspace_cuda(rows));
      return bias_backward_cuda(rows, x.const_data_ptr(), data_or_null(bias), grad_y.const_data_ptr(),
                                grad_x.mutable_data_ptr(), bias_out, add_bias,
                                bias_out == nullptr ? nullptr : workspace.mutable_data_ptr<float>(), stream_of(x));
    }
  }
  bias_backward_cpu(rows, x.const_data_ptr(), data_or_null(bias), grad_y.const_data_ptr(), grad_x.mutable_data_ptr(),
                    bias_out);
}

// Inputs that receive a gradient: x and the bias. The gradient of the bias goes to `target` if that wants it.
class BiasFunction : public torch::autograd::Function<BiasFunction> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const std::optional<Tensor>& bias, Activation activation,
                        const GradTarget& target) {
    const Tensor b = bias.value_or(Tensor());
    ctx->save_for_backward({x, b});
    save_state(ctx, target);
    ctx->saved_data["activation"] = static_cast<int64_t>(activation);
    return biased_kernel(x, b, activation);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor x = saved[0].contiguous();
    const Tensor& bias = saved[1];
    const Tensor added = kernel_bias(bias, x);
    // In place where nobody else holds grad_y: saves [t, f]. The kernels read each element before they write it.
    Tensor grad_x = may_write_over(grads[0]) ? grads[0] : at::empty_like(x);
    const Tensor grad_y = grads[0].contiguous();
    Tensor grad_bias;
    const auto& target = saved_state<GradTarget>(ctx);
    const bool wanted = bias.defined() && ctx->needs_input_grad(1), there = wanted && target.wanted(x);
    if (wanted) grad_bias = there ? target.sum : at::empty(bias.sizes(), x.options().dtype(acc_dtype(x)));
    ActivationRows rows = rows_of(x, static_cast<Activation>(ctx->saved_data["activation"].toInt()));
    rows.raw_bias = reads_raw(bias, x);
    run_bias_backward(rows, x, added, grad_y, grad_x, grad_bias, there && target.take_add());
    if (there) return {grad_x, {}, {}, {}};
    if (wanted) grad_bias = grad_bias.to(bias.scalar_type());
    return {grad_x, grad_bias, {}, {}};
  }
};

}  // namespace

// The formulas of the kernels in ATen's operations, for devices and dtypes without one; autograd differentiates them.
Tensor activate_composite(const Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kQuickGelu:
      return x * at::sigmoid(1.702 * x);
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kSquaredRelu:
      break;
  }
  return at::relu(x).square();
}

Tensor gated_composite(const Tensor& gate_up, Activation activation) {
  const int64_t f = gate_up.size(-1) / 2;
  return activate_composite(gate_up.narrow(-1, 0, f), activation) * gate_up.narrow(-1, f, f);
}

// Promoted to fp32 by the weights, then rounded back: two roundings where the fused CUDA kernel has one.
Tensor weigh_rows(const Tensor& y, const Tensor& weights) {
  check(y.dim() == 2 && weights.dim() == 1 && weights.size(0) == y.size(0) && weights.scalar_type() == acc_dtype(y),
        "weigh_rows of {} got weights {} of {}; it takes one fp32 weight per row", shape_text(y), shape_text(weights),
        c10::toString(weights.scalar_type()));
  return (y * weights.unsqueeze(1)).to(y.scalar_type());
}

Tensor gated_activation(const Tensor& gate_up, Activation activation, const Tensor& row_weights) {
  check_input("gated_activation", gate_up);
  check(gate_up.size(-1) % 2 == 0,
        "gated_activation takes gate and up side by side, an even number of columns; it got {}", shape_text(gate_up));
  // Only the CUDA kernel applies row weights itself.
  if (row_weights.defined() && !on_cuda_kernel(gate_up))
    return weigh_rows(gated_activation(gate_up, activation), row_weights);
  check(!row_weights.defined() || row_weights.numel() * gate_up.size(-1) == gate_up.numel(),
        "gated_activation of {} got {} row weights; it takes one per row", shape_text(gate_up), row_weights.numel());
  if (!has_kernel(gate_up)) return gated_composite(gate_up, activation);
  return needs_gradient({gate_up, row_weights}) ? GatedFunction::apply(gate_up, activation, if_defined(row_weights))
                                                : gated_kernel(gate_up, activation, row_weights);
}

Tensor bias_activation(const Tensor& x, const Tensor& bias, Activation activation, const GradTarget& target) {
  check_input("bias_activation", x);
  if (bias.defined())
    check(bias.dim() == 1 && bias.size(0) == x.size(-1), "bias_activation on rows of {} got a bias of {}", x.size(-1),
          shape_text(bias));
  if (!has_kernel(x)) return activate_composite(bias.defined() ? x + bias : x, activation);
  return needs_gradient({x, bias}) ? BiasFunction::apply(x, if_defined(bias), activation, target)
                                   : biased_kernel(x, bias, activation);
}

}  // namespace megalith::ops
