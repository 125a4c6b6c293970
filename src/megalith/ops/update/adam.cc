// Checks and dispatch of optimizer updates. All factors that do not depend on the element are computed in fp64 and
// rounded once (adam_factors), the same for every device.
//
// The gate lets an update be queued before the host knows the gradient norm: clip_gate computes the clipping factor on
// the device, and the kernels read it there. When a gradient is not finite, the gate is closed and they change nothing.
#include "megalith/ops/update/adam.h"

#include <ATen/ATen.h>

#include <cmath>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/tensor_internal.h"
#include "megalith/ops/update/flat_buffer_internal.h"

namespace megalith::ops {

namespace {

// `name` is what the message calls the tensor.
void check_one(const char* name, const at::Tensor& t, const at::Tensor& main) {
  check(t.defined() && t.is_contiguous() && t.numel() == main.numel() && t.device() == main.device(),
        "an optimizer update of {} elements got a {} of another size or device, or one that is not contiguous",
        main.numel(), name);
}

// Checks the tensors and returns their pointers; without a kernel only n is set.
UpdateArrays arrays_of(const UpdateTensors& t, bool second_moment) {
  check(t.main.defined() && t.main.scalar_type() == at::kFloat, "an optimizer updates fp32 parameters");
  check_one("parameter", t.main, t.main);
  check_one("gradient", t.grad, t.main);
  check_one("first moment", t.exp_avg, t.main);
  if (second_moment) check_one("second moment", t.exp_avg_sq, t.main);
  if (t.param.defined()) check_one("model parameter", t.param, t.main);
  UpdateArrays a;
  a.n = t.main.numel();
  if (!has_kernel(t.main)) return a;  // the composites work on the tensors
  a.main = t.main.mutable_data_ptr<float>();
  a.grad = t.grad.const_data_ptr();
  a.grad_dtype = t.grad.scalar_type();
  a.first = t.exp_avg.mutable_data_ptr<float>();
  if (second_moment) a.second = t.exp_avg_sq.mutable_data_ptr<float>();
  if (t.param.defined()) a.param = t.param.mutable_data_ptr();
  if (t.param.defined()) a.param_dtype = t.param.scalar_type();
  if (t.gate.defined() && t.gate.is_cuda()) a.gate = t.gate.const_data_ptr<float>();
  a.multiprocessors = t.multiprocessors;
  return a;
}

// Reads a gate on the host: returns false if it is closed, otherwise puts its factor into the scalars.
bool passes(const at::Tensor& gate, UpdateScalars& scalars) {
  if (!gate.defined()) return true;
  const at::Tensor host = gate.is_cpu() ? gate : gate.cpu();
  scalars.grad_scale = host.const_data_ptr<float>()[0];
  return host.const_data_ptr<float>()[1] != 0;
}

// Adam and SGD in ATen's operations, for devices without a kernel.
void adam_composite(const UpdateTensors& t, const AdamSettings& s, const UpdateScalars& u) {
  at::Tensor g = t.grad.to(at::kFloat) * u.grad_scale;
  if (!s.decoupled_decay) g = g + t.main * u.weight_decay;
  t.exp_avg.mul_(s.beta1).add_(g, 1 - s.beta1);
  t.exp_avg_sq.mul_(s.beta2).addcmul_(g, g, 1 - s.beta2);
  const double first = 1 - std::pow(s.beta1, static_cast<double>(u.step));
  const double second = 1 - std::pow(s.beta2, static_cast<double>(u.step));
  if (s.decoupled_decay) t.main.mul_(1 - u.lr * u.weight_decay);
  t.main.addcdiv_(t.exp_avg, t.exp_avg_sq.sqrt().div_(std::sqrt(second)).add_(s.epsilon), -u.lr / first);
  if (t.param.defined()) t.param.copy_(t.main);
}

void sgd_composite(const UpdateTensors& t, const SgdSettings& s, const UpdateScalars& u) {
  t.exp_avg.mul_(s.momentum).add_(t.grad.to(at::kFloat) * u.grad_scale + t.main * u.weight_decay);
  t.main.sub_(t.exp_avg, u.lr);
  if (t.param.defined()) t.param.copy_(t.main);
}

}  // namespace

// The 1e-6 is that of torch.nn.utils.clip_grad_norm_.
double clip_factor(double norm, const ClipSettings& settings) {
  const double factor = settings.clip / (norm * settings.unscale + 1e-6);
  return settings.clip > 0 && factor < 1 ? factor * settings.unscale : settings.unscale;
}

at::Tensor clip_gate(std::span<const at::Tensor> squares, const ClipSettings& settings) {
  check(!squares.empty(), "clip_gate got no sums of squares; it needs at least one");
  std::vector<at::Tensor> flat;
  for (const at::Tensor& sum : squares) {
    check(sum.scalar_type() == at::kDouble && sum.numel() == 1, "clip_gate takes one fp64 number for each sum");
    flat.push_back(sum.view({1}));
  }
  const at::Tensor all = flat.size() == 1 ? flat[0] : at::cat(flat);
  const at::Tensor gate = at::empty({2}, all.options().dtype(at::kFloat));
  if constexpr (kCudaKernels) {
    if (all.is_cuda()) {
      clip_gate_cuda(all.const_data_ptr<double>(), all.numel(), settings, gate.mutable_data_ptr<float>(),
                     stream_of(gate));
      return gate;
    }
  }
  double sum = 0;
  const at::Tensor host = all.is_cpu() ? all : all.cpu();
  for (int64_t i = 0; i < host.numel(); ++i) sum += host.const_data_ptr<double>()[i];
  const bool finite = std::isfinite(sum);
  gate[0] = finite ? clip_factor(std::sqrt(sum), settings) : 0;
  gate[1] = finite ? 1 : 0;
  return gate;
}

// In fp64, since in fp32 already 1 - 0.999 would be off by 1.3e-5 of itself, and with it the size of the first steps.
AdamFactors adam_factors(const AdamSettings& s, const UpdateScalars& u) {
  const double first = 1 - std::pow(s.beta1, static_cast<double>(u.step));
  const double second = 1 - std::pow(s.beta2, static_cast<double>(u.step));
  const auto f = [](double x) { return static_cast<float>(x); };
  return {f(s.beta1),
          f(1 - s.beta1),
          f(s.beta2),
          f(1 - s.beta2),
          f(s.epsilon),
          f(u.grad_scale),
          f(s.decoupled_decay ? 1 - u.lr * u.weight_decay : 1),
          f(s.decoupled_decay ? 0 : u.weight_decay),
          f(u.lr / first),
          f(1 / std::sqrt(second))};
}

void adam_update(const UpdateTensors& tensors, const AdamSettings& settings, UpdateScalars scalars) {
  const UpdateArrays arrays = arrays_of(tensors, true);
  if constexpr (kCudaKernels) {
    if (on_cuda_kernel(tensors.main)) return adam_cuda(arrays, settings, scalars, stream_of(tensors.main));
  }
  if (!passes(tensors.gate, scalars)) return;
  if (!has_kernel(tensors.main)) return adam_composite(tensors, settings, scalars);
  adam_cpu(arrays, settings, scalars);
}

void adam_update_runs(const UpdateTensors& tensors, const AdamSettings& settings, std::span<const UpdateRun> runs) {
  if constexpr (kCudaKernels) {
    if (on_cuda_kernel(tensors.main) && adam_runs_fit_cuda(arrays_of(tensors, true)))
      return adam_runs_cuda(arrays_of(tensors, true), settings, runs, stream_of(tensors.main));
  }
  // Run by run; the padding between runs is left alone.
  for (const UpdateRun& run : runs) {
    const auto cut = [&run](const at::Tensor& t) {
      return t.defined() ? t.narrow(0, run.begin, run.end - run.begin) : at::Tensor();
    };
    adam_update({cut(tensors.main), cut(tensors.grad), cut(tensors.exp_avg), cut(tensors.exp_avg_sq),
                 cut(tensors.param), tensors.gate},
                settings, run.scalars);
  }
}

void sgd_update(const UpdateTensors& tensors, const SgdSettings& settings, UpdateScalars scalars) {
  const UpdateArrays arrays = arrays_of(tensors, false);
  if constexpr (kCudaKernels) {
    if (on_cuda_kernel(tensors.main)) return sgd_cuda(arrays, settings, scalars, stream_of(tensors.main));
  }
  if (!passes(tensors.gate, scalars)) return;
  if (!has_kernel(tensors.main)) return sgd_composite(tensors, settings, scalars);
  sgd_cpu(arrays, settings, scalars);
}

}  // namespace megalith::ops
