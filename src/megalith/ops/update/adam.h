// Optimizer updates over flat buffers in one pass: unscale and clip the gradient, update moments and the fp32
// parameter, cast it to the model's dtype. Each element is read once and written once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace megalith::ops {

struct AdamSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  bool decoupled_decay = true;  // AdamW; otherwise the decay is added to the gradient
};

struct SgdSettings {
  double momentum = 0.9;
};

// What an update works on, all flat [n], contiguous, on one device.
struct UpdateTensors {
  at::Tensor main;        // fp32
  at::Tensor grad;        // fp32, bf16 or fp16
  at::Tensor exp_avg;     // fp32; SGD: the momentum
  at::Tensor exp_avg_sq;  // fp32; SGD: undefined
  at::Tensor param;       // what the model reads, a copy of main in its dtype; undefined: main itself
  at::Tensor gate{};  // clip_gate: whether there is an update at all, and its grad_scale; undefined: as the scalars say
};

struct UpdateScalars {
  double lr = 0;
  double weight_decay = 0;
  double grad_scale = 1;  // multiplies the gradient: clipping, the inverse of the loss scale
  int64_t step = 1;       // from 1: bias correction
};

// Clipping by the norm of all gradients.
struct ClipSettings {
  double unscale = 1;  // gradients are multiplied with it: the inverse of the loss scale
  double clip = 0;     // the largest norm behind that; 0: any
};
// The grad_scale for gradients whose norm, as they are, is `norm`.
double clip_factor(double norm, const ClipSettings& settings);
// The same without a wait for the norm, where the sums of squares are still being computed: {grad_scale, 1}, or {0, 0}
// when a sum is not finite. `squares`: one fp64 number each, all on one device; fp32 [2] there.
at::Tensor clip_gate(std::span<const at::Tensor> squares, const ClipSettings& settings);

// m = β₁m + (1-β₁)g;  v = β₂v + (1-β₂)g²;  p -= lr (m̂ / (√v̂ + ε) + wd p), with m̂ = m/(1-β₁ᵗ), v̂ = v/(1-β₂ᵗ).
void adam_update(const UpdateTensors& tensors, const AdamSettings& settings, UpdateScalars scalars);

// Elements [begin, end) of a buffer that share scalars.
struct UpdateRun {
  int64_t begin = 0, end = 0;
  UpdateScalars scalars;  // grad_scale and step are the same for all runs of an update
};
// The same for several runs, in their order; between them lies padding, which is zero in every tensor and stays so. On
// CUDA one pass over the whole buffer.
void adam_update_runs(const UpdateTensors& tensors, const AdamSettings& settings, std::span<const UpdateRun> runs);

// b = μb + (g + wd p);  p -= lr b.
void sgd_update(const UpdateTensors& tensors, const SgdSettings& settings, UpdateScalars scalars);

}  // namespace megalith::ops
