// Dropout as a function of one seed: forward draws 64 bits from the generator, and the kernels derive the mask from
// them and the position of each element (Philox). So the mask depends neither on the device nor on the number of
// threads. On CUDA backward draws the mask again instead of reading a byte per element; on the CPU forward stores it.
// While a graph is recorded, the seed is not known yet: kernels of forward and backward compute it in each replay.
#include "megalith/ops/norm_rope/dropout.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/custom_function.h>

#include <mutex>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/autograd_state.h"
#include "megalith/ops/kernel/tensor_internal.h"
#include "megalith/ops/norm_rope/composite_internal.h"
#include "megalith/ops/norm_rope/dropout_internal.h"
#include "megalith/ops/norm_rope/dropout_seed_internal.h"

namespace megalith::ops {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A probability is a setting of the user (ConfigError); the rest is up to the calling layer.
void check_arguments(const Tensor& x, double p, const at::Generator& generator) {
  check<ConfigError>(p >= 0 && p < 1, "the probability of dropout is {}; it must be at least 0 and less than 1", p);
  check(x.is_floating_point(), "dropout takes floating-point numbers; it got {}", c10::toString(x.scalar_type()));
  if (p == 0) return;
  check(generator.defined() && generator.device().type() == x.device().type(),
        "dropout on {} needs a generator of that device", x.device().str());
}

// Draws the seed of one mask, in the form that kernels take.
DrawnSeed draw_kernel_seed(const at::Generator& generator) {
  if constexpr (kCudaKernels) {
    if (generator.device().is_cuda()) return draw_seed_cuda(generator);
  }
  return {.value = draw_seed(generator)};
}

struct Result {
  Tensor y;
  Tensor mask;  // uint8, shape of x; undefined without a backward pass, and always on CUDA
};

// Runs the kernel of the device of x; `with_mask` matters on the CPU only.
Result run_forward(const Tensor& x, const Tensor& residual, double p, const DrawnSeed& seed, bool with_mask) {
  const Tensor in = x.contiguous();
  const Tensor added = residual.defined() ? residual.contiguous() : Tensor();
  Result result{.y = at::empty_like(in)};
  DropoutForward args{.dtype = in.scalar_type(), .elements = in.numel(), .p = p, .seed = seed};
  args.x = in.const_data_ptr();
  if (added.defined()) args.residual = added.const_data_ptr();
  args.y = result.y.mutable_data_ptr();
  if constexpr (kCudaKernels) {
    if (in.is_cuda()) {
      dropout_forward_cuda(args, stream_of(in));
      return result;
    }
  }
  if (with_mask) {
    result.mask = at::empty(in.sizes(), in.options().dtype(at::kByte));
    args.mask = result.mask.mutable_data_ptr<uint8_t>();
  }
  dropout_forward_cpu(args);
  return result;
}

// Saves the mask (CPU) or only the seed (CUDA). The gradient of the residual is that of the output.
class DropoutFunction : public torch::autograd::Function<DropoutFunction> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const std::optional<Tensor>& residual, double p,
                        const at::Generator& generator) {
    const DrawnSeed seed = draw_kernel_seed(generator);
    const Result result = run_forward(x, residual.value_or(Tensor()), p, seed, /*with_mask=*/true);
    ctx->save_for_backward({result.mask});
    save_state(ctx, Drop{.p = p, .seed = seed, .residual = residual.has_value()});
    return result.y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto& drop = saved_state<Drop>(ctx);
    const Tensor residual = drop.residual ? grads[0] : Tensor();
    if (!ctx->needs_input_grad(0)) return {{}, residual, {}, {}};
    const Tensor mask = ctx->get_saved_variables()[0];
    const Tensor grad_y = grads[0].contiguous();
    if (!mask.defined())  // CUDA: dropout of the gradient with the same seed has the same mask
      return {run_forward(grad_y, {}, drop.p, drop.seed, /*with_mask=*/false).y, residual, {}, {}};
    Tensor grad_x = at::empty_like(grad_y);
    dropout_backward_cpu(grad_y.scalar_type(), grad_y.numel(), drop.p, grad_y.const_data_ptr(),
                         mask.const_data_ptr<uint8_t>(), grad_x.mutable_data_ptr());
    return {grad_x, residual, {}, {}};
  }

 private:
  struct Drop {
    double p;
    DrawnSeed seed;
    bool residual;
  };
};

}  // namespace

// A CUDA generator draws only on the device, so that its seed and its offset are mixed instead.
uint64_t draw_seed(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  if (generator.device().is_cpu()) return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  const uint64_t offset = generator.get_offset();
  generator.set_offset(offset + kOffsetPerSeed);
  return mixed_seed(generator.current_seed(), offset);
}

// Other masks than the kernels': it draws from the generator itself. For fp64 and devices without kernels.
Tensor dropout_composite(const Tensor& x, double p, const at::Generator& generator) {
  const Tensor kept = at::empty(x.sizes(), x.options().dtype(at::kBool)).bernoulli_(1 - p, generator);
  return at::where(kept, x * (1 / (1 - p)), at::zeros({}, x.options()));
}

Tensor dropout(const Tensor& x, double p, const at::Generator& generator) {
  check_arguments(x, p, generator);
  if (p == 0) return x;
  if (!has_kernel(x)) return dropout_composite(x, p, generator);
  if (!needs_gradient({x})) return run_forward(x, {}, p, draw_kernel_seed(generator), /*with_mask=*/false).y;
  return DropoutFunction::apply(x, std::nullopt, p, generator);
}

Tensor dropout_add(const Tensor& x, const Tensor& residual, double p, const at::Generator& generator) {
  check_arguments(x, p, generator);
  check(x.sizes() == residual.sizes(), "dropout_add adds tensors of one shape; it got {} and {}", shape_text(x),
        shape_text(residual));
  if (p == 0) return residual + x;
  // A residual stream in a wider dtype than its branches takes two passes.
  if (!has_kernel(x) || x.scalar_type() != residual.scalar_type()) return residual + dropout(x, p, generator);
  if (!needs_gradient({x, residual}))
    return run_forward(x, residual, p, draw_kernel_seed(generator), /*with_mask=*/false).y;
  return DropoutFunction::apply(x, if_defined(residual), p, generator);
}

}  // namespace megalith::ops
