// UpdateRule: how an optimizer changes a parameter in one step, and which state it keeps between steps. AdamW (adamw.h)
// and SGD (sgd.h) are built in, and run::make_rule selects them by option; a program supplies its own through
// train::TrainerSetup::update_rule.
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
// any rule. The contract of a rule:
//
//   - It is elementwise: it receives flat pieces of buffers, cut anywhere. A piece may span several parameters with the
//     same learning rate and decay and does not tell which. (Muon works on whole matrices between two such rules:
//     muon.h, matrix_update.h.)
//   - States are fp32, one number per element each, and zero before the first step. (Between steps they may be kept in
//     fewer bits, StateFormats; a rule does not notice.)
//   - Padding between parameters is updated like the rest: where parameter, gradient and states are all zero, they must
//     stay zero.
//   - It has no other state: ranks and threads share one object, and a checkpoint holds only the state tensors and the
//     number of steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "megalith/ops/update/adam.h"
#include "megalith/ops/update/stored_values.h"

namespace megalith::optim {

// The elements of one update. All tensors are flat [n], contiguous and on one device: the model's, or the host for
// offloaded state.
struct FlatElements {
  at::Tensor main;                   // fp32 parameters, updated in place
  at::Tensor grad;                   // fp32, scaled, a copy that the rule may overwrite; fused rules: see is_fused
  std::vector<at::Tensor> states{};  // fp32, updated in place, in the order of state_names()
  // For fused rules only; undefined for others.
  at::Tensor param{};  // main in bf16 or fp16, as the model reads it; undefined if the model reads main itself
  at::Tensor gate{};   // ops::clip_gate: whether to update at all, and the grad_scale; undefined: the scalars apply
  int multiprocessors = 0;  // the most that the update occupies; 0 means all (UpdateRule::can_be_confined)

  // Returns views of elements [begin, end).
  FlatElements slice(int64_t begin, int64_t end) const;
};

// The elements of one update, as FlatElements, but as they are stored.
struct StoredElements {
  ops::StoredValues main;
  at::Tensor grad;
  std::vector<ops::StoredValues> states{};
  at::Tensor param{};  // undefined if the model reads main, or main.high
  at::Tensor gate{};
  int multiprocessors = 0;

  // Returns views of elements [begin, end), both multiples of ops::kScaleBlock.
  StoredElements slice(int64_t begin, int64_t end) const;
};

// Immutable; any thread may call it.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // The name in checkpoints and messages. A checkpoint of one rule cannot be continued with another.
  virtual std::string name() const = 0;
  // Names of the state tensors of a parameter: letters, digits and underscores, and not "main", which is the fp32
  // parameter itself. Checkpoints store them as "optimizer.NAME.parameter", so they must not change.
  virtual std::vector<std::string> state_names() const = 0;
  // Returns one sentence for each problem of the rule's settings: what was given and what is allowed. Called before
  // the states are allocated.
  virtual std::vector<std::string> problems() const { return {}; }

  // Bytes of state per parameter in fp32, without the main parameter of a 16-bit one. StateFormats::state_bytes knows
  // other formats.
  int64_t state_bytes() const { return static_cast<int64_t>(sizeof(float) * state_names().size()); }

  // Updates the elements of each run with the scalars of that run; the optimizer calls it once per block. Unless the
  // rule is fused, it works in pieces, so that temporaries stay small: it scales the gradient before each call of
  // update() and casts main to the model's dtype afterwards. Override it where one pass over all runs is faster.
  virtual void update_runs(const FlatElements& block, std::span<const ops::UpdateRun> runs) const;

  // update_runs over state in other formats than fp32. Returns false, with nothing changed, where the rule has no such
  // pass for these formats on this device: its state is then widened in pieces for update_runs.
  virtual bool update_stored_runs(const StoredElements& block, std::span<const ops::UpdateRun> runs) const;

  // A fused rule does everything in one pass over memory: it reads `grad` as the buffers hold it (fp32, bf16 or fp16),
  // multiplies it by scalars.grad_scale, writes `param` where defined, and obeys `gate` where defined.
  virtual bool is_fused() const { return false; }
  // Whether update_runs and update_stored_runs obey `multiprocessors` on CUDA, so that the update can run beside the
  // next forward pass (optim/overlap). Only for rules that are fused and elementwise.
  virtual bool can_be_confined() const { return false; }

 private:
  // Updates x.main and x.states in step number scalars.step, counted from 1. scalars.lr and scalars.weight_decay are
  // the values of the parameter group (weight_decay is 0 if it does not decay); grad_scale is for fused rules only.
  virtual void update(const FlatElements& x, const ops::UpdateScalars& scalars) const = 0;
};

// Adds "NAME is VALUE; it must be ALLOWED" unless `good`. A helper for problems().
void require_setting(std::vector<std::string>& problems, bool good, const char* name, double value,
                     const char* allowed);

}  // namespace megalith::optim
