// Delayed scaling. Casts of a step use the scale from earlier steps and raise `seen` to the magnitudes they meet, all
// on the device; end_fp8_step() turns them into the next scales for all layers at once:
//
//   state of a tensor   | scale | largest, step -1 | step -2 | … |     the newest enters in front, the oldest drops out
//   scale'              reach / max of them / 2^margin
//
// A tensor that grows beyond 2^margin times the largest of its history saturates in that step: the price of not reading
// it twice.
#include "megalith/nn/tensor_parallel/fp8_history.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <vector>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/ops/kernel/host_values.h"

namespace megalith::nn {

Fp8History::Fp8History(const ops::Fp8Recipe& r, at::Device device) : recipe(r) {
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  state = at::zeros({kTensors, 1 + r.history}, options);
  state.select(1, 0).fill_(1);
  seen = at::zeros({kTensors}, options);
}

ops::Fp8Cast Fp8History::cast(Tensor which, bool record) const {
  ops::Fp8Cast result{.kind = which == kGradient ? recipe.gradients() : ops::Fp8Kind::kE4m3};
  if (!fresh) result.scale = state[which].narrow(0, 0, 1);
  if (record) result.seen = seen.narrow(0, which, 1);
  return result;
}

std::shared_ptr<Fp8History> fp8_history(const std::optional<ops::Fp8Recipe>& recipe, at::Device device) {
  if (!recipe || recipe->scaling != ops::Fp8Scaling::kDelayed) return nullptr;
  return std::make_shared<Fp8History>(*recipe, device);
}

bool applies_fp8(const std::optional<ops::Fp8Recipe>& recipe, const at::Tensor& weight) {
  return recipe && applies_fp8(recipe, weight.size(0), weight.size(1));
}

bool applies_fp8(const std::optional<ops::Fp8Recipe>& recipe, int64_t out, int64_t in) {
  if (!recipe) return false;
  const int64_t multiple = ops::fp8_width_multiple(recipe->scaling);
  return out > 0 && in > 0 && out % multiple == 0 && in % multiple == 0;
}

void attach_fp8(Parameter& weight, const std::optional<ops::Fp8Recipe>& recipe) {
  weight.attached.fp8 = fp8_history(recipe, weight.value.device());
  weight.attached.in_fp8 = applies_fp8(recipe, weight.value);
}

void end_fp8_step(std::span<Parameter* const> parameters, const comm::Group& group) {
  std::vector<at::Tensor> states, seen;
  ops::Fp8Recipe recipe;
  for (const Parameter* parameter : parameters) {
    if (!parameter->attached.fp8) continue;
    recipe = parameter->attached.fp8->recipe;  // the same for all
    states.push_back(parameter->attached.fp8->state);
    seen.push_back(parameter->attached.fp8->seen);
    parameter->attached.fp8->fresh = false;
  }
  if (states.empty()) return;  // the same on all ranks of the group, so that no rank waits in the collective
  const at::NoGradGuard no_grad;
  // All layers at once: one collective, and a handful of kernels instead of a handful per layer.
  const at::Tensor now = at::stack(seen).unsqueeze(2);  // [layers, 3, 1]
  group.all_reduce(now, comm::ReduceOp::kMax, "largest magnitudes of fp8 tensors");
  const at::Tensor before = at::stack(states), scale = before.narrow(2, 0, 1);
  const at::Tensor history = at::cat({now, before.narrow(2, 1, recipe.history - 1)}, 2);
  const at::Tensor largest = recipe.most_recent ? now : history.amax(2, /*keepdim=*/true);
  const double e4m3 = ops::reach_of(ops::Fp8Kind::kE4m3), gradients = ops::reach_of(recipe.gradients());
  const at::Tensor reach =
      ops::to_device(at::tensor({e4m3, e4m3, gradients}, at::kFloat).view({1, 3, 1}), now.device());
  const at::Tensor wanted = reach / largest / std::exp2(recipe.margin);
  // A layer that ran no pass, or met NaN or infinities, keeps its scale.
  const at::Tensor fine = largest.gt(0).logical_and_(largest.isfinite()).logical_and_(wanted.isfinite());
  const at::Tensor after = at::cat({at::where(fine, wanted, scale), history}, 2);
  at::_foreach_copy_(states, after.unbind(0));
  at::_foreach_zero_(seen);
}

}  // namespace megalith::nn
