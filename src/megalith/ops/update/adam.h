// Optimizer updates over flat buffers in one pass: unscale and clip the gradient, update the moments and the fp32
// parameter, cast it to the dtype of the model. Each element is read once and written once.
//
// A step without the host waiting for the gradient norm:
//   const at::Tensor gate = clip_gate(squares, {.unscale = 1 / loss_scale, .clip = 1.0});
//   adam_update({main, grad, exp_avg, exp_avg_sq, param, gate}, settings, {.lr = lr, .step = step});
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace megalith::ops {

// Settings of Adam that do not change during a run.
struct AdamSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  bool decoupled_decay = true;  // AdamW; otherwise weight decay is added to the gradient
};

// Settings of SGD.
struct SgdSettings {
  double momentum = 0.9;
};

// The tensors of an update, all flat [n], contiguous, on one device.
struct UpdateTensors {
  at::Tensor main;        // fp32
  at::Tensor grad;        // fp32, bf16 or fp16
  at::Tensor exp_avg;     // fp32; for SGD the momentum
  at::Tensor exp_avg_sq;  // fp32; undefined for SGD
  at::Tensor param;       // the model's copy of main in its own dtype; undefined if the model reads main
  at::Tensor gate{};      // result of clip_gate: whether to update at all, and the grad_scale; may be undefined
  // CUDA: the most multiprocessors that adam_update_runs occupies at any time; 0 means all. The bits are the same.
  int multiprocessors = 0;
};

// Numbers of one update, which differ from step to step or between parameter groups.
struct UpdateScalars {
  double lr = 0;            // learning rate
  double weight_decay = 0;  // wd
  double grad_scale = 1;    // multiplies the gradient: clipping, the inverse of the loss scale
  int64_t step = 1;         // counted from 1, for bias correction
};

// Clipping by the norm of all gradients.
struct ClipSettings {
  double unscale = 1;  // multiplies the gradients: the inverse of the loss scale
  double clip = 0;     // the largest norm after unscaling; 0 means no limit
};
// Returns the grad_scale for gradients whose norm before unscaling is `norm`.
double clip_factor(double norm, const ClipSettings& settings);
// Computes the same on the device, so that the host does not wait for the norm: returns fp32 [2], {grad_scale, 1}, or
// {0, 0} if a sum is not finite. `squares` are sums of squares, one fp64 number each, all on one device.
at::Tensor clip_gate(std::span<const at::Tensor> squares, const ClipSettings& settings);

// Updates in place:
//   m = β₁m + (1-β₁)g;  v = β₂v + (1-β₂)g²;  p -= lr (m̂ / (√v̂ + ε) + wd p), with m̂ = m/(1-β₁ᵗ), v̂ = v/(1-β₂ᵗ).
// With a gate, grad_scale is taken from it, and a closed gate leaves everything unchanged. Does not wait for the device
// on CUDA.
void adam_update(const UpdateTensors& tensors, const AdamSettings& settings, UpdateScalars scalars);

// Elements [begin, end) of a buffer that share scalars.
struct UpdateRun {
  int64_t begin = 0, end = 0;
  UpdateScalars scalars;  // grad_scale and step must be the same for all runs of an update
};
// adam_update for several runs in ascending order. Between them is padding, which is zero in every tensor and stays so.
// On CUDA one pass over the whole buffer, which tensors.multiprocessors may confine.
void adam_update_runs(const UpdateTensors& tensors, const AdamSettings& settings, std::span<const UpdateRun> runs);

// Updates in place: b = μb + (g + wd p);  p -= lr b.
void sgd_update(const UpdateTensors& tensors, const SgdSettings& settings, UpdateScalars scalars);

}  // namespace megalith::ops
