// UpdateRule: what an optimizer does to a parameter in one step, and what it remembers between steps. AdamW (adamw.h)
// and SGD (sgd.h) are two; a program brings its own through train::TrainerSetup::update_rule, and the options name
// those that run::make_rule knows.
//
//   class SignDescent : public optim::UpdateRule {
//     std::string name() const override { return "sign_descent"; }
//     std::vector<std::string> state_names() const override { return {"exp_avg"}; }
//     void update(const optim::FlatElements& x, const ops::UpdateScalars& s) const override {
//       x.states[0].mul_(0.9).add_(x.grad, 0.1);
//       x.main.mul_(1 - s.lr * s.weight_decay).sub_(x.states[0].sign(), s.lr);
//     }
//   };
//
// Shards, offload to the host, checkpoints, clipping, loss scaling, parameter groups and the memory planner work with
// any rule. What a rule may assume, and what it must keep to:
//
//   - It is elementwise: it gets flat pieces of buffers, cut anywhere. A piece may hold parts of several parameters
//     with the same learning rate and decay, and never says which. (A rule over whole matrices, such as Muon, needs
//     buckets that are cut between parameters: one more virtual function here, for BufferLayout to ask.)
//   - States are fp32, one number per element each, and zero before the first step.
//   - Padding between parameters is updated like the rest: parameter, gradient and states of zero must stay zero.
//   - It has no state besides: ranks and threads share one object, and a checkpoint holds the state tensors and the
//     number of steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "megalith/ops/update/adam.h"

namespace megalith::optim {

// What an update works on. All tensors are flat [n], contiguous, on one device: the model's, or the host for offloaded
// state.
struct FlatElements {
  at::Tensor main;                   // fp32 parameters, updated in place
  at::Tensor grad;                   // fp32 and final, a copy the rule may overwrite; see is_fused
  std::vector<at::Tensor> states{};  // fp32, updated in place, in the order of state_names()
  // For rules that are fused; undefined for others.
  at::Tensor param{};  // what the model reads: main in bf16 or fp16. Undefined when the model reads main itself
  at::Tensor gate{};   // ops::clip_gate: whether there is an update, and its grad_scale. Undefined: as the scalars say

  // Views of elements [begin, end).
  FlatElements slice(int64_t begin, int64_t end) const;
};

// Immutable; any thread may call it.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // The name in checkpoints and messages. A checkpoint of one rule is not continued by another.
  virtual std::string name() const = 0;
  // The state tensors of a parameter. Checkpoints keep them as "optimizer.NAME.parameter", so names may not change:
  // letters, digits and underscores, and not "main", which is the fp32 parameter itself.
  virtual std::vector<std::string> state_names() const = 0;
  // Everything wrong with the rule's settings, one sentence each: what was given and what is allowed. Asked before
  // the states are allocated.
  virtual std::vector<std::string> problems() const { return {}; }

  // Bytes of state per parameter, for the planner. An fp32 copy of a 16-bit parameter is not part of them.
  int64_t state_bytes() const { return static_cast<int64_t>(sizeof(float) * state_names().size()); }

  // Updates the elements of each run with the scalars of the run; the optimizer calls it once per block. Unless the
  // rule is fused, the gradient is scaled before and main cast to the model's type after each call of update(), in
  // pieces, so that temporaries stay small. Override it where one pass over all runs is faster.
  virtual void update_runs(const FlatElements& block, std::span<const ops::UpdateRun> runs) const;

  // A fused rule does everything in one pass over memory: it reads `grad` as the buffers hold it (fp32, bf16 or fp16),
  // multiplies it by scalars.grad_scale, writes `param` where defined, and obeys `gate` where defined.
  virtual bool is_fused() const { return false; }

 private:
  // Updates x.main and x.states for step number scalars.step, counted from 1. scalars.lr and scalars.weight_decay are
  // those of the parameter group, weight_decay 0 for parameters that do not decay; grad_scale is for fused rules.
  virtual void update(const FlatElements& x, const ops::UpdateScalars& scalars) const = 0;
};

// Adds "NAME is VALUE; it must be ALLOWED" unless `good`: for problems().
void require_setting(std::vector<std::string>& problems, bool good, const char* name, double value,
                     const char* allowed);

}  // namespace megalith::optim
